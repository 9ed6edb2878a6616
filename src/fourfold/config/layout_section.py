"""The keys of a layout: the one description of each, its name, type, default and text, and the run file's `[layout]` of them.

A resolved layout, a layout that the search prices and a layout's document have the fields of `LayoutKeys`, some of a type of their
own.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from fourfold.config.section import Section

Outermost = Literal["pp", "dp_replicate", "dp"]


@dataclass(frozen=True, kw_only=True)
class _Auto:
    """The key that is of no layout."""

    auto: bool = False
    """Whether the planner chooses every key of this section that is not stated."""


@dataclass(frozen=True, kw_only=True)
class LayoutKeys:
    """A layout by the keys of a run file."""

    pp: PositiveInt = 1
    """Pipeline parallelism: ranks that the segments are divided over."""
    schedule: str = "1f1b"
    """Pipeline schedule: a built-in name, `file:PATH` (a compute order as text), or `python:MODULE:FUNCTION` that yields one."""
    virtual_stages: PositiveInt | None = None
    """Stages on each pipeline rank (virtual pipeline size, VPP). Left out: the fewest that the schedule takes, 1 or 2."""
    segments_per_stage: list[PositiveInt] | None = None
    """Segments (embedding, blocks, head) of each stage in forward order. Left out: divided evenly by cost."""
    dp_replicate: PositiveInt = 1
    """HSDP: replicas, each of `dp_shard` ranks."""
    dp_shard: PositiveInt | None = None
    """Data-parallel ranks that parameters, gradients or optimizer states are sharded over. Left out: all ranks that remain."""
    outermost: Outermost = "pp"
    """Ranks that lie farthest apart on the devices: pipeline stages (`pp`), HSDP replicas with a whole pipeline each
    (`dp_replicate`), or all ranks that read different data (`dp`)."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage: 0 data parallelism, 1 optimizer states sharded, 2 gradients too, 3 parameters too (FSDP)."""
    cp: PositiveInt = 1
    """Context parallelism: ranks that share each sequence. `sequence_length` is a multiple of 2 x `cp`."""
    cp_method: str = "ring"
    """`ring`, `all_gather`, `ulysses`, or `ring+ulysses:U` with Ulysses of degree U inside rings of degree `cp` / U."""
    tp: PositiveInt = 1
    """Tensor parallelism: ranks that share each matrix; innermost, so that a group lies inside a node."""
    sequence_parallel: bool | None = None
    """Whether norms and residuals are divided over the sequence among tensor-parallel ranks. Needs `tp` > 1. Left out: yes, where
    `tp` > 1 divides the tokens of a microbatch."""
    ep: PositiveInt = 1
    """Expert parallelism: ranks that the experts are divided over. Divides `num_experts`."""
    etp: PositiveInt = 1
    """Expert tensor parallelism: ranks that share each expert's matrices."""
    overlap_experts: bool = False
    """Whether the all-to-alls over `ep` run behind another microbatch's computation: a forward beside a backward where the schedule
    pairs them (`dualpipe_v`), else microbatches two by two, which hold twice the activations. Needs `ep` > 1."""
    microbatch_sequences: PositiveInt = 1
    """Sequences of one microbatch on one data-parallel rank."""
    recompute: str | list[str] = "none"
    """Activation recomputation: `none`, `selective`, `full`, `full:N` (the first N blocks), or a list with one word a block."""
    offload: str | list[str] = "none"
    """Activations that wait for their backward in the host's memory: `none`, `activations`, `activations:N` (the first N blocks
    that do not recompute in full), or a list with one word a block. Activations that are needed again at once stay."""
    offload_optimizer: bool = False
    """Whether optimizer states, and master weights where they are a copy, lie in the host's memory: each unit's are fetched for its
    update and copied back."""
    prefetch: Annotated[int, Field(ge=0)] = 1
    """How many computations ahead of its use a segment's parameters are gathered (ZeRO-3), or its activations are fetched
    (`offload`)."""


LAYOUT_KEYS = tuple(field.name for field in fields(LayoutKeys))


class LayoutSection(Section, LayoutKeys, _Auto):
    """The degrees of the mesh's axes, and the order of each rank's step.

    `layout = "auto"`, or `auto = true` beside keys that are to be kept, takes the planner's best layout for the cluster."""
