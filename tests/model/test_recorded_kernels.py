"""Kernels in the formulas' place, as recorded: their bytes are those of the arrays that they take and give, and what a block moves
is what arithmetic says."""

from dataclasses import replace

import pytest

from fourfold.config import ModelConfig
from fourfold.kernels.norm import FormulaNorms
from fourfold.model import torch_operations
from fourfold.model.block import block_forward
from fourfold.model.environment import Saved
from fourfold.model.footprint import Shape, segment_footprint
from fourfold.model.operations import with_operations
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.spec import Segment, build_segments
from fourfold.model.work import Elementwise, Gemm, Work
from tests.model.test_executed_kernels import BASE, DEEPSEEK, MIXTRAL
from tests.support.counted_kernels import CountedKernels
from tests.support.fused_operations import PlainLoss, PlainPointwise
from tests.support.torch_rank import TorchRank

LLAMA = ModelConfig(32, 4096, 32, 8, 128, 14336, 128256)
TOKENS = 4096
ACCELERATOR = Shape(1, TOKENS, "bf16", "fp32", False, exchange=False)


def _segment(model: ModelConfig, kind: str) -> Segment:
    return next(segment for segment in build_segments(model) if segment.kind == kind)


def _bytes(work: Work, least: bool = False) -> int:
    return sum(item.least_bytes if least else item.bytes for item in work.items if isinstance(item, Elementwise))


@pytest.mark.parametrize("kind", ["block", "head"])
@pytest.mark.parametrize("policy", ["none", "selective"])
@pytest.mark.parametrize("model", [BASE, MIXTRAL, DEEPSEEK], ids=["dense", "experts", "MLA"])
def test_kernels_move_what_they_take_and_give(model: ModelConfig, policy: str, kind: str) -> None:
    shape = Shape(2, 64, "fp32", "fp32", False, kernels=True)
    segment = _segment(model, kind)
    rank = TorchRank(segment, model, shape, 0)
    kernels = {"norms": FormulaNorms(), "losses": PlainLoss(), "pointwise": PlainPointwise()}
    counted = {name: CountedKernels(each, rank.log) for name, each in kernels.items()}
    rank.env = replace(rank.env, ops=with_operations(torch_operations, counted))  # type: ignore[arg-type]
    footprint = RecordedRank(segment, model, shape).footprint(policy)
    for name, (executed, _) in rank.passes(policy).items():
        if name in ("forward", "backward"):
            recorded: Work = getattr(footprint, name)
            assert _bytes(recorded) == pytest.approx(executed.bytes, rel=0.01), (name, executed.trace)
            launches = sum(item.launches for item in recorded.items if isinstance(item, Elementwise))
            assert abs(launches - executed.launches) <= 2, (name, executed.trace)


@pytest.mark.parametrize("policy", ["none", "selective"])
def test_an_8b_llama_block_moves_what_arithmetic_says(policy: str) -> None:
    """In bf16, of T tokens of hidden size h, f of the feed-forward, q and k of a rotated token, v of its values:

    forward   norm 2 h, rotation in place 2 (q + k), sum and norm 4 h, SwiGLU 3 f, sum with the residual 3 h
    backward  SwiGLU 5 f, norms with the residual 2 x 4 h, rotation into q | k | v 2 (q + k + v); selective recomputation makes the
              norms' outputs 2 x 2 h and SwiGLU's 3 f again

    beside tables of cosines, statistics and sums of the norms' weight gradients, which are a few per cent.
    """
    footprint = segment_footprint(_segment(LLAMA, "block"), LLAMA, replace(ACCELERATOR, kernels=True), policy)
    h, f, width = LLAMA.hidden_size, LLAMA.ffn_size, LLAMA.head_dim
    rotated, values = (LLAMA.num_heads + LLAMA.num_kv_heads) * width, LLAMA.num_kv_heads * width
    forward = (2 + 4 + 3) * h + 2 * rotated + 3 * f
    backward = 5 * f + 8 * h + 2 * (rotated + values) + (4 * h + 3 * f if policy == "selective" else 0)
    assert _bytes(footprint.forward) == pytest.approx(2 * TOKENS * forward, rel=0.02)
    assert _bytes(footprint.backward) == pytest.approx(2 * TOKENS * backward, rel=0.04)


@pytest.mark.parametrize("policy", ["none", "selective"])
def test_what_prices_take_of_formulas_is_what_kernels_move(policy: str) -> None:
    """The least bytes of the formulas' regions, by which a step on a measured GPU is priced, are those of the kernels.
    Under selective recomputation formulas hand silu(gate) on, which is written and read."""
    block = _segment(LLAMA, "block")
    formulas, kernels = (
        segment_footprint(block, LLAMA, replace(ACCELERATOR, kernels=each), policy) for each in (False, True)
    )
    for name in ("forward", "backward"):
        least, moved = _bytes(getattr(formulas, name), least=True), _bytes(getattr(kernels, name))
        if (name, policy) == ("backward", "selective"):
            least -= 2 * 2 * TOKENS * LLAMA.ffn_size
        assert least == pytest.approx(moved, rel=0.03), name
    for name in ("forward_workspace_bytes", "backward_workspace_bytes"):
        assert getattr(kernels, name) <= getattr(formulas, name)
    assert kernels.saved_bytes == formulas.saved_bytes


@pytest.mark.parametrize("born", ["in another region", "outside of regions", "elsewhere", "in this region"])
def test_a_fused_kernel_reads_what_an_earlier_one_wrote(born: str) -> None:
    """Only what was born in a region is there without being read."""
    recording = Recording(staging=False)
    ops = RecorderOperations(recording, accelerator=True)
    recording.begin()
    outside = ops.outside((100,), "fp32")
    if born == "in another region":
        with ops.fused():
            x = ops.copy(outside)
    elif born == "outside of regions":
        x = ops.copy(outside)
    elif born == "elsewhere":
        x = outside
    with ops.fused():
        if born == "in this region":
            x = ops.copy(outside)
        x.mul_(2.0).add_(1.0)
    assert recording.recorded().items[-1].least_bytes == 2 * 400  # type: ignore[union-attr]


@pytest.mark.parametrize("model", [BASE, MIXTRAL], ids=["dense", "experts"])
def test_a_record_says_which_weights_each_matmul_reads(model: ModelConfig) -> None:
    """All matrices of the block once, each at a matmul of its shape, in the newest record alone. A copy in fp32 is read of the
    router's."""
    rank = RecordedRank(_segment(model, "block"), model, Shape(1, 64, "bf16", "fp32", False, exchange=False))
    for passes in (2, 1):
        rank.recording.begin()
        for _ in range(passes):
            block_forward(rank.segment, rank.env, rank.hidden(), rank.weights, rank.batch, Saved(), rank.balancing)
    read, items = rank.recording.weights, rank.recording.recorded().items
    parameters = {each.name: each for unit in rank.segment.own for each in unit.parameters}
    matrices = {n for n, each in parameters.items() if len(each.shape) > 1 and not n.endswith("mlp.gate.weight")}
    assert sorted(name for run in read.values() for name in run) == sorted(matrices)
    for place, run in read.items():
        gemm = items[place]
        assert isinstance(gemm, Gemm)
        held = sum(parameters[name].numel for name in run)
        assert gemm.columns * gemm.inner * gemm.groups == held, run
