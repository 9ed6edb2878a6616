"""The routed feed-forward on one rank: against transformers' modules, plain formulas, and its own footprint."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen3_moe import modeling_qwen3_moe

from fourfold.config import ModelConfig
from fourfold.model import torch_grouped, torch_operations
from fourfold.model.environment import Environment
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.dispatch import keep_within_capacity, plan_route
from fourfold.model.experts.parts import run_through
from fourfold.model.experts.router import Choice, choose
from fourfold.model.experts.swiglu import add_grouped_matmul
from fourfold.model.footprint import Shape
from fourfold.model.operations import Groups
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.spec import build_segments
from fourfold.model.torch_operations import grouped_matmul, torch_dtype
from fourfold.model.weights import Deferred, Weight, deferring
from fourfold.runtime.routers import update_bias
from fourfold.runtime.tracker import MemoryTracker
from tests.support.differentiable import rebuilding
from tests.support.double import compute_in_double
from tests.support.experts import (
    AUXILIARY,
    DEEPSEEK,
    GPT_OSS,
    LLAMA4,
    MIXTRAL,
    QWEN,
    Case,
    assemble,
    bind,
    full_weights,
    hidden_states,
    plain_gradients,
    random,
    routed_layer,
    routed_pass,
    routed_weights,
    routing_of,
    run_rank,
)

MODULES = (modeling_mixtral, modeling_qwen3_moe, modeling_deepseek_v3)
NORMED = replace(QWEN, normalize_top_k=True)
UNGROUPED = replace(DEEPSEEK, num_expert_groups=1, top_groups=1, normalize_top_k=False, num_shared_experts=2)
MODELS = {"mixtral": MIXTRAL, "qwen": QWEN, "qwen-normed": NORMED, "deepseek": DEEPSEEK, "ungrouped": UNGROUPED}
ALL_MODELS = {**MODELS, "gpt_oss": GPT_OSS, "llama4": LLAMA4}


def _transformers_block(model: ModelConfig, bias: Tensor | None) -> nn.Module:
    sizes = {"hidden_size": model.hidden_size, "num_experts_per_tok": model.top_k, "hidden_act": "silu"}
    if model.family == "mixtral":
        config = MixtralConfig(num_local_experts=model.num_experts, intermediate_size=model.moe_ffn_size, **sizes)
        block: nn.Module = modeling_mixtral.MixtralSparseMoeBlock(config)
    elif model.family == "qwen3_moe":
        sizes |= {"num_experts": model.num_experts, "moe_intermediate_size": model.moe_ffn_size}
        config = Qwen3MoeConfig(norm_topk_prob=model.normalize_top_k, **sizes)
        block = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(config)
    else:
        sizes |= {"n_routed_experts": model.num_experts, "moe_intermediate_size": model.moe_ffn_size}
        config = DeepseekV3Config(
            n_shared_experts=model.num_shared_experts, n_group=model.num_expert_groups, topk_group=model.top_groups,
            norm_topk_prob=model.normalize_top_k, routed_scaling_factor=model.routed_scaling, **sizes,
        )  # fmt: skip
        block = modeling_deepseek_v3.DeepseekV3MoE(config)
        if bias is not None:
            block.double().gate.e_score_correction_bias.copy_(bias)
    config._experts_implementation = "eager"
    return block.double()


def _transformers_gradients(
    model: ModelConfig, x: Tensor, projection: Tensor, bias: Tensor | None
) -> dict[str, Tensor]:
    """x + block(norm(x)) of transformers' modules and every gradient of (output * projection).sum()."""
    w, block = full_weights(model), _transformers_block(model, bias)
    norm = modeling_mixtral.MixtralRMSNorm(model.hidden_size, model.norm_eps).double()
    parameters = {
        "norm": norm.weight, "router": block.gate.weight, "gate_up": block.experts.gate_up_proj,
        "down": block.experts.down_proj,
    }  # fmt: skip
    for name, parameter in parameters.items():
        parameter.data.copy_(w[name].view_as(parameter))
    if model.num_shared_experts:
        shared = block.shared_experts
        for layer, tensor in ((shared.gate_proj, w["shared_gate_up"][0]), (shared.up_proj, w["shared_gate_up"][1])):
            layer.weight.data.copy_(tensor)
        shared.down_proj.weight.data.copy_(w["shared_down"])
    leaf = x.clone().requires_grad_()
    out = leaf + block(norm(leaf))
    (out * projection).sum().backward()
    result = {name: parameter.grad for name, parameter in parameters.items()} | {"output": out.detach(), "x": leaf.grad}
    if model.num_shared_experts:
        result["shared_gate_up"] = torch.stack((shared.gate_proj.weight.grad, shared.up_proj.weight.grad))
        result["shared_down"] = shared.down_proj.weight.grad
    return result


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_modules(name: str, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_double(monkeypatch, *MODULES)
    model, case = MODELS[name], Case(keep=keep)
    x = hidden_states(1, case.sequences, case.length, model.hidden_size).flatten(0, 1)
    projection = random(*x.shape, seed=9)
    bias = 0.1 * random(model.num_experts, seed=8) if model.router == "sigmoid" else None
    expected = _transformers_gradients(model, x, projection, bias)
    got = assemble([run_rank(0, case, model, x, projection, bias)], case, model, x)
    assert set(expected) == set(got) - {"losses", "load"}
    assert got["load"][-1] == 0
    for part, tensor in expected.items():
        error = (got[part].reshape(tensor.shape) - tensor).abs().max().item()
        assert error <= 1e-11 * tensor.abs().max().item(), (part, error)


@pytest.mark.parametrize("capacity", [None, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("name", ALL_MODELS)
def test_losses_and_capacity_by_plain_formulas(name: str, capacity: float | None) -> None:
    case, model = Case(), replace(ALL_MODELS[name], capacity_factor=capacity, **AUXILIARY)
    x = hidden_states(1, case.sequences, case.length, model.hidden_size).flatten(0, 1)
    projection = random(*x.shape, seed=9)
    bias = 0.1 * random(model.num_experts, seed=8) if model.router == "sigmoid" else None
    expected = plain_gradients(x, projection, full_weights(model), model, bias, [case.tokens(0, True)])
    got = assemble([run_rank(0, case, model, x, projection, bias)], case, model, x)
    assert (expected["losses"] > 0).all()
    for part, tensor in expected.items():
        error = (got[part].reshape(tensor.shape) - tensor).abs().max().item()
        assert error <= 1e-11 * tensor.abs().max().item(), (part, error)


def test_capacity_takes_the_first_by_position() -> None:
    model = replace(MIXTRAL, num_experts=4, top_k=2, capacity_factor=0.5)
    experts = torch.tensor([[0, 1], [0, 2], [3, 0], [1, 0], [1, 0]])
    assert ceil(0.5 * 2 * 5 / 4) == 2
    kept = keep_within_capacity(
        torch_operations, Choice(torch.zeros(5, 4), experts, torch.ones(5, 2)), routing_of(model)
    )
    assert kept.tolist() == [[0, 1], [0, 2], [3, 4], [1, 4], [4, 4]]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    x, router = random(40, 16), random(8, 16, seed=3)
    model = replace(DEEPSEEK, top_groups=4)
    bias = torch.zeros(8, dtype=torch.float64)
    bias[5] = 10.0
    choice = choose(torch_operations, x, router, bias, routing_of(model))
    assert (choice.experts == 5).any(-1).all()
    scores = (x @ router.t()).sigmoid().gather(1, choice.experts)
    torch.testing.assert_close(choice.weights, 2.5 * scores / scores.sum(-1, keepdim=True))


def test_the_bias_moves_against_the_load() -> None:
    bias = torch.zeros(4)
    update_bias(bias, torch.tensor([9, 1, 4, 2]), 0.25)
    assert bias.tolist() == [-0.25, 0.25, 0.0, 0.25]


@pytest.mark.parametrize("sizes", [(3, 0, 5, 2), (0, 0, 0, 0), (0, 10, 0, 0)])
def test_grouped_matmuls(sizes: tuple[int, ...]) -> None:
    rows, grad = random(sum(sizes), 6), random(sum(sizes), 7, seed=2)
    matrices = random(4, 7, 6, seed=3)
    groups = Groups(sizes, torch.tensor(sizes).cumsum(0).int())
    out, grad_rows = grouped_matmul(rows, matrices.transpose(1, 2), groups), grouped_matmul(grad, matrices, groups)
    weight = Weight(matrices, torch.full_like(matrices, torch.nan))
    weight.fresh = True
    weight.deferred = Deferred()
    add_grouped_matmul(torch_operations, weight, grad, rows, groups)
    assert weight.grad.isnan().all()
    weight.deferred.run()
    weight.deferred = None
    add_grouped_matmul(torch_operations, weight, grad, rows, groups)
    start = 0
    for expert, size in enumerate(sizes):
        part = slice(start, start + size)
        torch.testing.assert_close(out[part], rows[part] @ matrices[expert].t())
        torch.testing.assert_close(grad_rows[part], grad[part] @ matrices[expert])
        torch.testing.assert_close(weight.grad[expert], 2 * grad[part].t() @ rows[part])
        start += size


@pytest.mark.parametrize("chunk", [2**27, 8 * 4 * 16])
@pytest.mark.parametrize("sizes", [(3, 0, 5, 2), (0, 10, 0, 0), (0, 0, 0, 1), (4, 4, 4, 4)])
def test_a_grouped_kernel_needs_no_sizes_on_the_host(
    sizes: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's grouped matmul, which a processor has too, beside one matmul for each expert; all outputs at once, or eight."""

    def waits(ends: Tensor) -> tuple[int, ...]:
        raise AssertionError("the host would wait")

    rows, grad = random(sum(sizes), 16).bfloat16(), random(sum(sizes), 24, seed=2).bfloat16()
    matrices, ends = random(4, 24, 16, seed=3).bfloat16(), torch.tensor(sizes).cumsum(0).int()
    known, unknown = Groups(sizes, ends), Groups(waits, ends)
    expected = grouped_matmul(rows, matrices.transpose(1, 2), known)
    sums, found = torch.ones(4, 24, 16), torch.ones(4, 24, 16)
    for fresh in (True, False):
        torch_operations.grouped_accumulate(sums, grad, rows, known, fresh)
    monkeypatch.setattr(torch_grouped, "_has_kernel", lambda *sizes: True)
    monkeypatch.setattr(torch_grouped, "GRADIENT_CHUNK_ELEMENTS", chunk)
    torch.testing.assert_close(grouped_matmul(rows, matrices.transpose(1, 2), unknown), expected, rtol=2e-2, atol=2e-2)
    for fresh in (True, False):
        torch_operations.grouped_accumulate(found, grad, rows, unknown, fresh)
    torch.testing.assert_close(found, sums, rtol=2e-2, atol=2e-2)
    assert not found[[size == 0 for size in sizes]].any()


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_a_route_that_the_host_does_not_see_is_the_one_that_it_sees(tokens: int) -> None:
    experts = random(tokens, 8).topk(3).indices
    seen, unseen = (plan_route(torch_operations, experts, 8, None, all_kept=each) for each in (False, True))
    assert torch.equal(seen.pairs, unseen.pairs)
    assert torch.equal(seen.places, unseen.places)
    assert torch.equal(seen.groups.ends, unseen.groups.ends)
    assert seen.groups.sizes == unseen.groups.sizes
    assert (seen.sent_rows, seen.received_rows) == (unseen.sent_rows, unseen.received_rows)
    assert seen.drops == unseen.drops


LARGE = {"hidden_size": 48, "moe_ffn_size": 40}


@pytest.mark.parametrize("split_backward", [False, True])
@pytest.mark.parametrize("compute", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
def test_footprint(name: str, keep: bool, compute: str, split_backward: bool) -> None:
    """Saved bytes exactly; peaks within what counting and sorting take."""
    model = replace(MODELS[name], **LARGE, **AUXILIARY)
    gradients = "fp64" if compute == "fp64" else "fp32"
    case = Case(sequences=4, length=64, keep=keep)
    shape = replace(case.shape, compute=compute, gradients=gradients)
    dtype, count = torch_dtype(compute), case.sequences * case.length
    weights = bind({n: t.to(dtype) for n, t in full_weights(model).items()})
    for weight in weights.values():
        weight.grad = weight.grad.to(torch_dtype(gradients))
    x, upstream = random(count, model.hidden_size).to(dtype), random(count, model.hidden_size, seed=4).to(dtype)
    tracker = MemoryTracker()
    for tensor in (upstream, *(w.data for w in weights.values()), *(w.grad for w in weights.values())):
        tracker.watch(tensor)
    balancing = Balancing(case.sequences, case.length, case.sequences)
    env, bound, saved = Environment(torch_operations, model), routed_weights(weights), rebuilding(keep)
    layer, run = routed_layer(model), routed_pass(env, balancing, saved)
    base = tracker.live_bytes
    tracker.watch(x)
    recorded = _record(model, shape, balancing, keep, split_backward)
    with tracker:
        out = run_through(layer.feed(run, x, bound))
    assert tracker.live_bytes - base == recorded["forward"][1]
    assert tracker.peak_bytes - base == pytest.approx(recorded["forward"][0], rel=0.01)
    deferred = Deferred()
    for weight in weights.values():
        weight.deferred = deferred if split_backward else None
    tracker.peak_bytes = tracker.live_bytes
    with tracker:
        grad = run_through(layer.feed_backward(run, upstream, bound))
    assert tracker.peak_bytes - base == pytest.approx(recorded["backward"][0], rel=0.01)
    assert grad.shape == x.shape
    assert tracker.live_bytes - base == recorded["backward"][1]
    before = tracker.peak_bytes = tracker.live_bytes
    with tracker:
        deferred.run()
    assert tracker.peak_bytes - before == pytest.approx(recorded["deferred"][0] - recorded["backward"][1], abs=64)
    assert tracker.live_bytes - base == recorded["deferred"][1]
    assert len(deferred) == 0
    del out


def _record(
    model: ModelConfig, shape: Shape, balancing: Balancing, keep: bool, split_backward: bool
) -> dict[str, tuple[int, int]]:
    """Peak and live bytes after each of the passes, the input and the output included."""
    recorded = RecordedRank(build_segments(model)[1], model, shape)
    env, recording, weights, saved = recorded.env, recorded.recording, recorded.weights, rebuilding(keep)
    upstream, result = recorded.hidden(), {}
    x = recorded.ops.make(upstream.shape, upstream.dtype)
    layer, run = routed_layer(model), routed_pass(env, balancing, saved)
    out = run_through(layer.feed(run, x, weights))
    result["forward"] = recording.peak, recording.live
    recording.begin()
    with deferring(recorded.units.values() if split_backward else ()) as pending:
        grad = run_through(layer.feed_backward(run, upstream, weights))
    result["backward"] = recording.peak, recording.live
    recording.begin()
    pending.run()
    result["deferred"] = recording.peak, recording.live
    del x, out, grad
    return result
