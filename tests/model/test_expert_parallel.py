"""A mixture of experts spread over ranks gives what one process gives: outputs, every gradient, losses, load."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from fourfold.config import ModelConfig
from fourfold.model.experts.parts import run_through
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.recorder.recording import RecordedGroup
from fourfold.model.spec import build_segments
from fourfold.model.weights import deferring
from fourfold.model.work import Collective, sent_bytes
from tests.support.differentiable import rebuilding
from tests.support.experts import (
    AUXILIARY,
    DEEPSEEK,
    GPT_OSS,
    LLAMA4,
    MIXTRAL,
    QWEN,
    Case,
    assemble,
    full_weights,
    hidden_states,
    plain_gradients,
    random,
    routed_layer,
    routed_pass,
    run_rank,
)
from tests.support.ranks import run_on_ranks

TOLERANCE = 1e-11
FULL = replace(DEEPSEEK, **AUXILIARY)
TWO = [
    (MIXTRAL, Case(dp=2, ep=2)),
    (FULL, Case(dp=2, ep=2, keep=False)),
    (FULL, Case(dp=2, etp=2)),
    (FULL, Case(tp=2, ep=2)),
    (FULL, Case(tp=2, ep=2, sequence=True)),
    (FULL, Case(tp=2, etp=2, sequence=True, defers=True)),
    (replace(MIXTRAL, **AUXILIARY), Case(tp=2, etp=2)),
    (replace(QWEN, **AUXILIARY), Case(cp=2, ep=2)),
    (replace(GPT_OSS, **AUXILIARY), Case(tp=2, ep=2, sequence=True, defers=True)),
    (replace(GPT_OSS, **AUXILIARY), Case(dp=2, etp=2, keep=False)),
    (replace(LLAMA4, **AUXILIARY), Case(tp=2, ep=2, sequence=True, defers=True)),
    (replace(LLAMA4, **AUXILIARY), Case(tp=2, etp=2, keep=False)),
    (replace(FULL, capacity_factor=0.6), Case(tp=2, ep=2, sequence=True)),
]
FOUR = [
    (FULL, Case(dp=2, tp=2, ep=2, etp=2)),
    (FULL, Case(dp=2, tp=2, ep=2, etp=2, sequence=True, keep=False)),
    (FULL, Case(dp=2, tp=2, ep=4, sequence=True)),
    (FULL, Case(cp=2, tp=2, ep=2, sequence=True)),
    (replace(QWEN, **AUXILIARY), Case(cp=2, tp=2, ep=2, etp=2)),
    (FULL, Case(dp=2, cp=2, ep=2)),
    (replace(GPT_OSS, capacity_factor=0.8), Case(dp=2, tp=2, ep=2, etp=2)),
    (FULL, Case(tp=4, ep=2, etp=2, sequences=2)),
    (replace(FULL, capacity_factor=0.8), Case(dp=2, tp=2, ep=2, etp=2)),
    (FULL, Case(tp=4, ep=4, sequence=True, sequences=2, defers=True)),
]


def _run(
    model: ModelConfig, case: Case
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    layout = case.layout
    x = hidden_states(case.dp, case.sequences, case.length, model.hidden_size).flatten(0, 1)
    projection = random(*x.shape, seed=9)
    bias = 0.1 * random(model.num_experts, seed=8) if model.router == "sigmoid" else None
    results = run_on_ranks(layout.world_size, run_rank, case=case, model=model, x=x, projection=projection, bias=bias)
    parts = [case.tokens(rank, split=True) for rank in range(layout.world_size)]
    expected = plain_gradients(x, projection, full_weights(model), model, bias, parts)
    return results, assemble(results, case, model, x), expected


def _check(model: ModelConfig, case: Case) -> None:
    results, got, expected = _run(model, case)
    assert expected["load"][0] > 2 * expected["load"].double().mean()
    assert expected["load"][-1] == 0
    if model.capacity_factor is None:
        _check_traffic(model, case, results)
    assert all(result["num_deferred"] > 0 for result in results) == case.defers
    for name, tensor in expected.items():
        error = (got[name].reshape(tensor.shape) - tensor).abs().max().item()
        assert error <= TOLERANCE * tensor.abs().max().item(), (name, error)
    if not case.sequence:
        norms = [result["gradients"]["norm"] for result in results]
        for rank in range(len(norms)):
            first = case.layout.group_of(rank, ("tp",))[0]
            torch.testing.assert_close(norms[rank], norms[first], rtol=0, atol=0)


def _declared(model: ModelConfig, case: Case) -> dict[str, list[Collective]]:
    recorded = RecordedRank(build_segments(model)[1], model, case.shape)
    assert recorded.balancing is not None
    ranks = RecordedGroup(recorded.recording, "cp+tp", case.cp * case.tp)
    balancing = replace(recorded.balancing, groups=(ranks,) if ranks.size > 1 else ())
    weights, x = recorded.weights, recorded.hidden()
    layer, run = routed_layer(model), routed_pass(recorded.env, balancing, rebuilding(case.keep))
    run_through(layer.feed(run, x, weights))
    forward = recorded.recording.recorded()
    recorded.recording.begin()
    with deferring(recorded.units.values() if case.defers else ()) as pending:
        run_through(layer.feed_backward(run, recorded.hidden(), weights))
    pending.run()
    return {"forward": [*forward.collectives], "backward": [*recorded.recording.recorded().collectives]}


def _check_traffic(model: ModelConfig, case: Case, results: list[dict[str, Any]]) -> None:
    """Every collective in its order; bytes of all ranks together, as single ranks' rows follow the router."""
    ranks = len(results)
    declared = _declared(model, case)
    for direction, traffic in declared.items():
        for axes in results[0][direction]:
            expected = [(t.kind, ranks * t.bytes) for t in traffic if t.axes == axes]
            counted = zip(*(result[direction][axes] for result in results), strict=True)
            assert [(same[0][0], sum(size for _, size in same)) for same in counted] == expected, (direction, axes)
    for axes in results[0]["sent_bytes"]:
        size = case.layout.group_size(tuple(axes.split("+")))
        sent = [sent_bytes(t.kind, t.bytes, size) for part in declared.values() for t in part if t.axes == axes]
        assert sum(result["sent_bytes"][axes] for result in results) == ranks * sum(sent)


def _name(value: object) -> str:
    if isinstance(value, Case):
        degrees = [f"{axis}{n}" for axis in ("dp", "cp", "tp", "ep", "etp") if (n := getattr(value, axis)) > 1]
        return "-".join([*degrees, *(flag for flag in ("sequence", "defers") if getattr(value, flag))])
    return value.family if isinstance(value, ModelConfig) else str(value)


@pytest.mark.parametrize(("model", "case"), TWO, ids=_name)
def test_two_ranks_as_one(model: ModelConfig, case: Case) -> None:
    _check(model, case)


@pytest.mark.parametrize(("model", "case"), FOUR, ids=_name)
def test_four_ranks_as_one(model: ModelConfig, case: Case) -> None:
    _check(model, case)


def _every_split(ranks: int) -> list[Case]:
    cases = []
    for dp, cp, tp in product((1, 2, 4), repeat=3):
        for ep, etp in product((1, 2, 4), repeat=2):
            if dp * cp * tp != ranks or ranks % (ep * etp):
                continue
            for sequence in (False, True) if tp > 1 else (False,):
                cases.append(Case(dp, cp, tp, ep, etp, sequence, keep=ep > 1, defers=etp > 1, sequences=2, length=16))
    return cases


@pytest.mark.sweep
@pytest.mark.parametrize("case", [*_every_split(2), *_every_split(4)], ids=_name)
@pytest.mark.parametrize(
    "model",
    [replace(QWEN, **AUXILIARY), FULL, replace(FULL, capacity_factor=0.7)],
    ids=["qwen", "deepseek", "capacity"],
)
def test_every_split_as_one(model: ModelConfig, case: Case) -> None:
    _check(model, case)
