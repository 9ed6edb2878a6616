"""Experts of a block on their ranks, and the way of tokens to them and back."""

import random
from collections.abc import Sequence
from typing import Any

from fourfold.launch.resolve import ResolvedRun
from fourfold.model.local_parameter import local_parameter
from fourfold.model.spec import Segment
from fourfold.model.work import Start, Work

DRAWN_TOKENS = 6
"""Tokens of each rank that are drawn."""


def experts_document(segment: Segment, resolved: ResolvedRun, work: Work, rows: int) -> dict[str, Any]:
    """`ExpertsDocument`. `rows`: of the first expert matmul. The tokens that are drawn choose experts by chance; bytes and rows are
    those of even loads, as predictions have them."""
    layout, model = resolved.layout, resolved.model
    unit = next(unit for unit in segment.own if unit.domain == "expert")
    local = local_parameter(unit.parameters[0], unit.domain, layout.degree)
    ranks = layout.group_of(0, ("ep",)) if layout.ep > 1 else (0,)
    spans = [local.box(layout.coordinates(rank))[0] for rank in ranks]
    exchanges = [
        each.collective for each in work.items if isinstance(each, Start) and each.collective.kind == "all_to_all"
    ]
    largest = max((each.bytes for each in exchanges), default=0)
    chance = random.Random(1)
    tokens = [
        [sorted(chance.sample(range(model.num_experts), model.top_k)) for _ in range(DRAWN_TOKENS)] for _ in ranks
    ]
    return {
        "num_experts": model.num_experts,
        "top_k": model.top_k,
        "ranks": list(ranks),
        "experts": spans,
        "shape": list(unit.parameters[0].shape),
        "rows": rows,
        "exchange_bytes": largest,
        "exchanges": sum(each.bytes == largest for each in exchanges) if largest else 0,
        "tokens": tokens,
        "sent": [_sent(own, spans) for own in tokens],
    }


def _sent(tokens: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Rows that a rank sends to each: one for every expert of a token that lies there."""
    chosen = [expert for experts in tokens for expert in experts]
    return [sum(first <= expert < end for expert in chosen) for first, end in spans]
