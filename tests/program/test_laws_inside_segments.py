"""Bytes that a block sends inside, against closed forms: tensor and context parallelism, experts."""

from collections import Counter

import pytest

from fourfold.program import Collective, Op, StepSpec, lower_pipeline
from tests.support.programs import MIXTRAL, make_spec


def _inside(spec: StepSpec, *ops: Op) -> list[Collective]:
    """The collectives of the last block's forward or backward, of one microbatch."""
    programs = lower_pipeline(spec)
    name = spec.segments[-2].name
    steps = [s for p in programs for s in p.instructions if s.op in ops and s.segment == name and s.microbatch == 0]
    return [c for step in steps for c in step.collectives]


def _kinds(collectives: list[Collective]) -> Counter[tuple[str, str, int]]:
    return Counter((c.kind, c.axes, c.bytes) for c in collectives)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("cp", [1, 2])
def test_tensor_parallelism_all_reduces_twice_a_block_each_way(tp: int, cp: int) -> None:
    """Megatron (Shoeybi et al. 2019, section 3): one all-reduce after attention and one after the feed-forward; backward the
    same before them. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) each is an all-gather and a
    reduce-scatter, of the same bytes together; backward gathers the inputs of the column-split matmuls again for their weight
    gradients, since forward keeps a rank's part of them alone. (`cp` all_gather's own collectives are on other axes.)"""
    make = {"model": {"num_heads": 4, "num_kv_heads": 4}, "tp": tp, "cp": cp, "sequence_length": 64}
    plain = make_spec(**make, sequence_parallel=False)  # type: ignore[arg-type]
    full = plain.layout.tokens * plain.model.hidden_size * 4
    forward, backward = _of(plain, "tp", Op.FORWARD), _of(plain, "tp", Op.BACKWARD)
    assert forward == backward == {("all_reduce", "tp", full): 2}
    split = make_spec(**make, sequence_parallel=True)  # type: ignore[arg-type]
    gather, scatter = ("all_gather", "tp", full), ("reduce_scatter", "tp", full)
    assert _of(split, "tp", Op.FORWARD) == {gather: 2, scatter: 2}
    assert _of(split, "tp", Op.BACKWARD) == {gather: 4, scatter: 2}, (
        "two of the gathers are of the forward's inputs again"
    )
    moved = [sum(c.sent_bytes for c in _inside(f, Op.FORWARD) if c.axes == "tp") for f in (plain, split)]
    assert moved[0] == moved[1] == 4 * (tp - 1) * full // tp


def _of(spec: StepSpec, axis: str, *ops: Op) -> Counter[tuple[str, str, int]]:
    return _kinds([c for c in _inside(spec, *ops) if c.axes == axis])


@pytest.mark.parametrize("cp", [2, 4])
def test_ring_attention_shifts_keys_and_values_around(cp: int) -> None:
    """Liu et al. 2023: forward sends a rank's keys and values cp - 1 times. Backward again, and as often their gradients: begun by
    the first rank that they reach, they come home after as many hops."""
    spec = make_spec(cp=cp, sequence_length=32)
    own = 2 * spec.layout.tokens * spec.model.num_kv_heads * spec.model.head_dim * 4
    forward = [c for c in _inside(spec, Op.FORWARD) if c.axes == "cp_ring"]
    assert {c.kind for c in forward} == {"shift"}
    assert sum(c.sent_bytes for c in forward) == (cp - 1) * own
    backward = sum(c.sent_bytes for c in _inside(spec, Op.BACKWARD) if c.axes == "cp_ring")
    assert backward == 2 * (cp - 1) * own


@pytest.mark.parametrize("cp", [2, 4])
def test_gathered_keys_and_values_are_one_all_gather_and_one_reduce_scatter(cp: int) -> None:
    """Llama 3 (section 3.3.2): every rank has all keys and values; their gradients are summed back to their owners."""
    spec = make_spec(cp=cp, cp_method="all_gather", sequence_length=32)
    full = 2 * cp * spec.layout.tokens * spec.model.num_kv_heads * spec.model.head_dim * 4
    forward, backward = (
        [c for c in _inside(spec, op) if set(c.axes.split("+")) & {"cp", "cp_ring"}] for op in (Op.FORWARD, Op.BACKWARD)
    )
    assert sum(c.bytes for c in forward if c.kind == "all_gather") == full
    assert sum(c.bytes for c in backward if c.kind == "reduce_scatter") == full
    assert {c.kind for c in forward} == {"all_gather"}


@pytest.mark.parametrize("cp", [2, 4])
def test_ulysses_exchanges_heads_for_positions_and_back(cp: int) -> None:
    """Jacobs et al. 2023: all-to-alls of queries, keys, values and outputs, (N-1)/N of each leaves the rank; backward the same."""
    spec = make_spec({"num_kv_heads": 4}, cp=cp, cp_method="ulysses", sequence_length=32)
    model, tokens = spec.model, spec.layout.tokens
    all_four = tokens * model.head_dim * 4 * 4 * model.num_heads
    for op in (Op.FORWARD, Op.BACKWARD):
        exchanged = [c for c in _inside(spec, op) if c.axes in ("cp_ulysses", "cp")]
        assert {c.kind for c in exchanged} == {"all_to_all"}
        assert sum(c.sent_bytes for c in exchanged) == (cp - 1) * all_four // cp


@pytest.mark.parametrize("ep", [2, 4])
def test_experts_are_reached_by_balanced_all_to_alls(ep: int) -> None:
    """Lepikhin et al. 2020: a rank's tokens, top_k copies of each, to their experts and back, as if every expert had as many:
    (N-1)/N of top_k x tokens x hidden each way, forward and backward."""
    spec = make_spec({**MIXTRAL}, dp_shard=4, ep=ep)
    sent = spec.model.top_k * spec.layout.tokens * spec.model.hidden_size * 4
    for op in (Op.FORWARD, Op.BACKWARD):
        exchanged = [c for c in _inside(spec, op) if c.axes == "ep" and c.kind == "all_to_all" and c.bytes >= sent]
        assert [c.bytes for c in exchanged] == [sent, sent]
        assert sum(c.sent_bytes for c in exchanged) == 2 * (ep - 1) * sent // ep
