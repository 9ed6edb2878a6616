"""Plans and predictions of every optimizer: its state fills memory, its update takes time, and bounds stay below both."""

import re
from dataclasses import replace
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.config.optimizers import OPTIMIZERS, OptimizerSection, StateTensor
from fourfold.export import EXPORTS, TrainerJob
from fourfold.layout import FlatLayout
from fourfold.model.work import Elementwise
from fourfold.plan.bound import Bounder
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer, candidate_spec
from fourfold.program import Instruction, Op, RankView, lower_step, rank_view, verify
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.muon.rows import MuonOp
from fourfold.simulate.durations import Durations
from fourfold.simulate.prediction import predict_step
from tests.plan.test_bounds import EXPERTS, MLA, drawn, request
from tests.plan.test_pricer import LAYOUT
from tests.support.programs import by_rank

names = pytest.mark.parametrize("name", OPTIMIZERS)


def section(name: str, **keys: Any) -> OptimizerSection:
    return OPTIMIZERS[name](name=name, **keys)


@names
def test_no_bound_is_above_the_simulation(name: str) -> None:
    asked, looked_at = request(16, 64, optimizer=section(name)), 0
    for candidate, seconds, memory_bytes in drawn(asked, 10, seed=7):
        try:
            step = Pricer(asked).predict(candidate)
        except UserError:
            continue
        assert seconds <= step.seconds * 1.001, candidate.words()
        assert memory_bytes <= max(step.device_bytes) * 1.001, candidate.words()
        looked_at += 1
    assert looked_at > 7


MUON = [
    pytest.param({}, {}, marks=pytest.mark.rest, id="dense"),
    pytest.param({}, {"placement": "shard"}, marks=pytest.mark.rest, id="no homes"),
    pytest.param(EXPERTS, {}, id="experts"),
    pytest.param(MLA, {"per_head": True}, marks=pytest.mark.rest, id="by head"),
    pytest.param({"vocab_size": 2**17}, {}, marks=pytest.mark.rest, id="many words"),
]


@pytest.mark.parametrize(("more", "keys"), MUON)
def test_a_bound_counts_newton_schulz_and_is_below_the_simulation(more: dict[str, Any], keys: dict[str, Any]) -> None:
    """The batch has few tokens, so that the update is most of a step; layouts have every ZeRO stage, tp and etp."""
    asked, seen, longer = request(16, 16, optimizer=section("muon", **keys), **more), set(), []
    plain = replace(asked, optimizer=section("adamw"))
    for candidate, seconds, _ in drawn(asked, 60, seed=11):
        seen |= {("zero", candidate.zero), ("tp", candidate.tp > 1), ("etp", candidate.etp > 1)}
        try:
            assert seconds <= Pricer(asked).predict(candidate).seconds * 1.001, candidate.words()
        except UserError:
            continue
        elementwise = Bounder(plain).bounds(candidate.shape).where(_around(candidate))
        longer.append(seconds / elementwise.seconds.min())
    assert min(longer) > 1
    assert max(longer) > 1.1
    assert seen >= {*(("zero", stage) for stage in range(4)), ("tp", True), ("etp", bool(more.get("num_experts")))}


def _around(candidate: Candidate) -> dict[str, Any]:
    return {key: value for key, value in vars(candidate).items() if key not in vars(candidate.shape)}


def _update_of(view: RankView, unit: str) -> Instruction:
    return next(s for s in lower_step(view).instructions if s.op is Op.UPDATE and s.segment == unit)


@names
def test_state_and_traffic_are_those_of_its_tensors(name: str) -> None:
    """bf16 weights, the rest in fp32: an update reads the gradient, reads and writes master weights and state, writes weights."""
    tensors = len(OPTIMIZERS[name].spec.state)
    asked = request(16, 64, optimizer=section(name))
    asked_spec = candidate_spec(asked, LAYOUT)
    view = rank_view(asked_spec)
    unit, numel = "b0", view.flats["b0"].shard_numel
    numels = [(p.numel, len(p.shape) > 1, each.kind) for each in asked_spec.segments for p in each.parameters]
    one, two = 0, sum(size for size, _, _ in numels)
    if OPTIMIZERS[name].spec.orthogonalizes:  # a hidden matrix has one state; the block's last shard has all its norms
        one = sum(size for size, matrix, kind in numels if matrix and kind == "block")
        norms = sum(p.numel for p in view.flats["b0"].parameters if len(p.shape) == 1)
        padding = view.flats["b0"].padded_numel - view.flats["b0"].numel
        assert buffer_bytes(view, "optimizer/b0") == 4 * (numel + norms + padding)
        unit, numel = "embed", view.flats["embed"].shard_numel
    assert buffer_bytes(view, f"optimizer/{unit}") == 4 * tensors * numel
    assert asked_spec.checkpoint_bytes == 4 * ((1 + tensors) * two - one)
    if OPTIMIZERS[name].spec.orthogonalizes:  # the update of a block has matmuls too: see the next test
        unit, numel = "embed", view.flats["embed"].shard_numel
    prices = asked.prices(asked_spec.layout)
    moved = numel * (4 + 2 * 4 * (1 + tensors) + 2)
    assert Durations(prices).local(_update_of(view, unit)) == prices.memory(moved)


def _iterations(flat: FlatLayout) -> list[tuple[int, int, int]]:
    """(start, end, FLOPs) of every matrix of a unit: five iterations of m^2 n, m^3 and m^2 n multiply-adds, m <= n its sides."""
    found = []
    for p, start, end in flat.ranges():
        if len(p.shape) == 2:
            m, n = sorted(p.spec.shape)
            found.append((start, end, 5 * 2 * (2 * m * m * n + m**3)))
    return found


def test_matmuls_of_newton_schulz_are_declared_and_priced() -> None:
    """On full matrices of those that the busiest shard has a part of."""
    asked = request(16, 64, optimizer=section("muon", placement="shard"))
    view = rank_view(candidate_spec(asked, LAYOUT))
    flat, step = view.flats["b0"], _update_of(view, "b0")
    flops = []
    for shard in range(flat.num_shards):
        low, high = flat.shard_range(shard)
        flops.append(sum(size for start, end, size in _iterations(flat) if start < high and low < end))
    assert step.flops == max(flops) > 0
    prices = asked.prices(view.spec.layout)
    moved = sum(item.bytes for item in step.work.items[:1] if isinstance(item, Elementwise))
    assert Durations(prices).local(step) > prices.memory(moved) + step.flops / 1e15


def test_owner_ranks_divide_the_matmuls_and_are_priced() -> None:
    """The busiest owner rank computes one matrix at least, and no more than longest-first allows; the update computes none."""
    seconds = {}
    for chosen in ("shard", "owner"):
        asked = request(16, 64, optimizer=section("muon", placement=chosen))
        view = rank_view(candidate_spec(asked, LAYOUT))
        steps = [s for s in lower_step(view).instructions if s.segment == "b0" and s.flops]
        seconds[chosen] = sum(s.flops for s in steps if s.op in (Op.UPDATE, MuonOp.ORTHOGONALIZE))
    sizes, ranks = [size for _, _, size in _iterations(view.flats["b0"])], LAYOUT.tp * LAYOUT.dp
    assert max(sizes) <= seconds["owner"] <= max(max(sizes), 4 / 3 * sum(sizes) / ranks + max(sizes))
    assert seconds["owner"] < seconds["shard"]


@names
def test_a_state_tensor_more_is_held_priced_and_verified(name: str) -> None:
    asked, spec = request(16, 64, optimizer=section(name)), OPTIMIZERS[name].spec
    one = candidate_spec(asked, replace(LAYOUT, pp=1))
    more = replace(one, optimizer=replace(spec, state=(*spec.state, StateTensor("another"))))
    programs = [lower_step(rank_view(each)) for each in (one, more)]
    own, wider = (sum(program.buffers[buffer] for buffer in program.resident) for program in programs)
    assert wider - own == 4 * sum(flat.shard_numel for flat in rank_view(one).flats.values())
    assert predict_step(one, asked.prices(one.layout)).seconds < predict_step(more, asked.prices(one.layout)).seconds
    assert not verify(by_rank(programs[:1], one), one)
    faults = verify(by_rank(programs[:1], one), more)
    assert any("buffer optimizer/b0 is declared with" in fault.message for fault in faults)


@pytest.mark.parametrize("trainer", EXPORTS)
def test_an_export_states_the_optimizer_or_says_that_it_does_not(trainer: str) -> None:
    words = {"adamw": "AdamW" if trainer == "torchtitan" else "adam", "sgd": "sgd"}
    for name in OPTIMIZERS:
        text, missing = EXPORTS[trainer](TrainerJob(request(16, optimizer=section(name)), LAYOUT))
        stated = re.search(rf"optimizer(_name)?[= \"]+{words.get(name, name)}\b", text) is not None
        assert any(f"optimizer {name}" in each for each in missing) == (not stated)
        assert stated or (trainer, name) == ("torchtitan", "sgd") or name not in words
