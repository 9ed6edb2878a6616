"""The reduction that sends a gradient in another format than it is summed in: its row, its settings, its instruction."""

from dataclasses import dataclass, replace
from enum import unique

from fourfold.config import DTYPE_BYTES, RunConfig, UserError
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Elementwise, Item, Start, Work
from fourfold.program.instruction import Instruction
from fourfold.program.opcode import SHARDS, Opcode, OpInfo
from fourfold.program.reductions import partial_sums
from fourfold.program.sizes import core_unit_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.totals import over

KEY = "precision.gradient_communication"


@unique
class CompressionOp(Opcode):
    """The operation that takes the place of REDUCE."""

    # fmt: off
    COMPRESSED_REDUCE = OpInfo("R~", "reduce gradients, sent in bf16",
        "starts to send every data-parallel rank its shard of a unit's gradient in bf16; each adds up what it receives in fp32 "
        "([below](#compressed-gradients))", names="unit of a microbatch", reads=("grad",),
        writes=("grad", "grad_shard", "reduce"), starts="collective", stream=SHARDS)
    # fmt: on


@dataclass(frozen=True)
class Compression:
    """The setting of a run. `format`: that in which gradients travel."""

    format: str


def resolve(config: RunConfig, spec: StepSpec) -> StepSpec:
    """The step with its `Compression`, where the run file has the key. Raises `UserError` where sums would be rounded."""
    sent, layout = config.precision.gradient_communication, spec.layout
    if sent is None:
        return spec
    if spec.gradients != "fp32":
        raise UserError(
            f"{KEY} = '{sent}', and gradients are summed in {spec.gradients}: each rank must sum what it receives in fp32; a value "
            f"that works: precision.gradients=fp32"
        )
    if layout.zero == 0 and layout.gradient_axes("dense"):
        raise UserError(
            f"{KEY} = '{sent}', and layout.zero = 0 sums full gradients by an all-reduce, which would round every partial sum; "
            "allowed: layout.zero = 1, 2, 3; a value that works: layout.zero=1"
        )
    return replace(spec, settings=(*spec.settings, Compression(sent)))


def check_planned(config: RunConfig) -> None:
    """Raises `UserError`: layouts are compared, and ruled out by bounds, with gradients that travel in the format of their sums."""
    if (sent := config.precision.gradient_communication) is not None:
        raise UserError(
            f"{KEY} = '{sent}': `fourfold plan` compares layouts whose gradients travel in fp32; what works: leave it out, then "
            f"`fourfold simulate` the run file of a layout with {KEY}={sent}"
        )


def sent_bytes(spec: StepSpec, flat: FlatLayout) -> int | None:
    """Bytes of a unit's full gradient as it is sent; None where its gradient is not compressed."""
    setting = spec.setting(Compression)
    return flat.padded_numel * DTYPE_BYTES[setting.format] if setting and flat.zero else None


def staging_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int | None:
    """Bytes of what a rank sends of a unit's gradient, and of what it receives."""
    size = sent_bytes(spec, flat) if kind == "reduce" else None
    return None if size is None else 2 * size


def compressed_reduction(spec: StepSpec, flat: FlatLayout, final: bool) -> Instruction | None:
    """The reduction of a unit's gradient, of any microbatch or (True) the step's last; None where it is not compressed."""
    size = sent_bytes(spec, flat)
    if size is None:
        return None
    layout, full, shard = spec.layout, core_unit_bytes(spec, "grad", flat), core_unit_bytes(spec, "grad_shard", flat)
    exchange = over(layout, "all_to_all", flat.shard_axes, size)
    rounded, summed = (
        Elementwise(full + size, full + size),
        Elementwise(size + shard, size + shard, exchange.group_size),
    )
    items: list[Item] = [*map(Start, partial_sums(spec, flat)), rounded, Start(exchange), summed]
    if final and (replicas := layout.active(("dp_replicate",))):
        items.append(Start(over(layout, "all_reduce", replicas, shard)))
    return Instruction(
        CompressionOp.COMPRESSED_REDUCE,
        flat.unit,
        0,
        reads=(f"grad/{flat.unit}",),
        writes=(f"{'grad_shard' if flat.zero >= 2 else 'grad'}/{flat.unit}", f"reduce/{flat.unit}"),
        work=Work(tuple(items)),
        stream=axes_name(flat.shard_axes),
    )
