"""Which back end computes a run's attention (`backend_choice`). A processor has one that is fast, and compares nothing."""

from collections.abc import Mapping
from functools import partial
from math import gcd

import torch

from fourfold.flash import choice
from fourfold.flash.backends import BACKENDS, FLASH, AttentionBackend, AttentionCase
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.train.backend_choice import Contest


def members(backend: AttentionBackend) -> dict[str, object]:
    """The back end's members of the operations."""
    return {"attend": backend.attend, "attend_backward": backend.attend_backward}


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


def attention_contest(
    case: AttentionCase, backends: Mapping[str, AttentionBackend] = BACKENDS
) -> Contest[AttentionBackend]:
    return Contest(
        work="attention",
        option="attention_backend",
        recorded_as="attention",
        file="attention.json",
        backends=backends,
        default=FLASH,
        case=case,
        examine=partial(choice.examine, case=case),
        timed=partial(choice.timed, case=case),
    )
