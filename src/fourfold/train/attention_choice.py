"""Which back end computes a run's attention (`backend_choice`). A processor has one that is fast, and compares nothing."""

from collections.abc import Mapping
from functools import partial
from math import gcd
from pathlib import Path
from typing import NamedTuple

import torch

from fourfold.config import RunConfig
from fourfold.flash import choice, remembered
from fourfold.flash.backends import BACKENDS, FLASH, AttentionBackend, AttentionCase
from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.train.backend_choice import AgreeingRanks, Contest, choose, device_clock, recorded_choice
from fourfold.train.session import RankContext


class Chosen(NamedTuple):
    """The back end, and in words why it is this one; no words where there was no choice."""

    backend: AttentionBackend
    reason: str = ""

    @property
    def operations(self) -> Operations:
        """Torch's, with attention by the back end."""
        attention = {"attend": self.backend.attend, "attend_backward": self.backend.attend_backward}
        return with_operations(torch_operations, attention)


def attention_case(spec: StepSpec, device: torch.device) -> AttentionCase:
    """The attention of one microbatch on one rank. On a processor documents are calls of their own."""
    layout, model = spec.layout, spec.model
    ranks = layout.tp * layout.cp_ulysses
    heads = max(1, model.num_heads // ranks)
    return AttentionCase(
        batch=layout.microbatch_sequences,
        queries=layout.sequence_length // layout.cp_ring,
        heads=heads,
        kv_heads=gcd(heads, max(1, model.num_kv_heads // ranks)),
        width=model.head_dim,
        value_width=model.value_head_dim or model.head_dim,
        dtype=torch_dtype(spec.compute),
        device=device,
        documents=spec.document_mask and device.type != "cpu",
        rectangles=layout.cp_ring > 1,
    )


def choose_attention_for_run(config: RunConfig, spec: StepSpec, context: RankContext, newest: Path | None) -> Chosen:
    """The choice at the start of a training. `newest`: the checkpoint that it may go on from."""
    device, recorded = context.device, ""
    if device.type == "cuda":
        recorded = context.tell(recorded_choice(newest, "attention") if context.rank == 0 else "", 0)
    return choose_attention(
        attention_case(spec, device),
        BACKENDS,
        context,
        config.run.attention_backend,
        recorded,
        remembered.default_path(),
        device_clock(device),
        measures=device.type == "cuda",
    )


def choose_attention(
    case: AttentionCase,
    backends: Mapping[str, AttentionBackend],
    ranks: AgreeingRanks,
    named: str,
    recorded: str,
    cache: Path,
    clock: choice.Clock,
    measures: bool,
) -> Chosen:
    """`backend_choice.choose` of a run's attention."""
    contest = Contest(
        work="attention",
        option="attention_backend",
        backends=backends,
        default=backends.get(FLASH.name, FLASH),
        examine=partial(choice.examine, case=case),
        compare=partial(choice.compare, backends.values(), case),
        cache=cache,
        key=remembered.key_of(case),
    )
    return Chosen(*choose(contest, ranks, named, recorded, clock, measures))
