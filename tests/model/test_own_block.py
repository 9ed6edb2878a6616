"""A person's own block without data: what the trace records is what torch executes; what is no block is refused in one message."""

import sys
from dataclasses import replace
from itertools import chain, count
from types import ModuleType
from typing import Any

import pytest
import torch

from fourfold.config import ModelConfig, UserError
from fourfold.config.check_model import check_model
from fourfold.model.counts import step_flops_per_token
from fourfold.model.footprint import Footprint, Shape
from fourfold.model.own import OwnBlock, OwnParameter
from fourfold.model.own.declare import own_block
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.spec import build_segments
from fourfold.model.work import Elementwise, Gemm, Join, Start, Work
from fourfold.runtime.tracker import MemoryTracker
from tests.support.own_block import BLOCK
from tests.support.torch_rank import TorchRank

MODEL = ModelConfig(2, 64, 4, 2, 16, 96, 256, block=BLOCK)
SHAPES = {
    "one rank": Shape(2, 64, "fp32", "fp32", False),
    "documents": Shape(2, 64, "fp32", "fp32", True),
    "bf16": Shape(2, 64, "bf16", "fp32", False),
    "gather": Shape(2, 64, "fp32", "fp32", False, cp_ring=2, cp_gather=True),
    "gather, documents": Shape(1, 64, "fp32", "fp32", True, cp_ring=4, cp_gather=True),
}


@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_recorded_is_what_is_executed(name: str, policy: str) -> None:
    """FLOPs of every matmul and attention in order, collectives, launches and bytes of all other kernels."""
    shape, block = SHAPES[name], build_segments(MODEL)[1]
    for ring_rank in {0, shape.cp_ring - 1}:
        rank = RecordedRank(block, MODEL, shape, ring_rank)
        phases = vars(rank.footprint(policy)) | vars(rank.halves(policy))
        passes = TorchRank(block, MODEL, shape, ring_rank).passes(policy)
        assert set(passes) >= {"forward", "backward", "input_gradient", "weight_gradient"}
        for phase, (kernels, started) in passes.items():
            recorded: Work = phases[phase.replace("recompute", "forward")]
            elementwise = [item for item in recorded.items if isinstance(item, Elementwise)]
            flops = [item.flops for item in recorded.items if not isinstance(item, Elementwise | Start | Join)]
            assert flops == kernels.flops, phase
            assert [*recorded.collectives] == started, phase
            assert sum(item.launches for item in elementwise) == kernels.launches, phase
            assert sum(item.bytes for item in elementwise) == pytest.approx(kernels.bytes, rel=0.02), phase
            assert all(item.least_bytes <= item.bytes for item in elementwise)


@pytest.mark.parametrize("name", ["one rank", "documents", "bf16"])
def test_memory_is_that_of_a_run(name: str) -> None:
    """Saved bytes, and the peaks of forward and backward, to the byte."""
    rank = TorchRank(build_segments(MODEL)[1], MODEL, SHAPES[name], 0)
    footprint: Footprint = RecordedRank(rank.segment, MODEL, SHAPES[name], 0).footprint("none")
    from fourfold.model.block import block_backward, block_forward
    from tests.support.differentiable import rebuilding

    x, upstream, saved = rank._hidden(), rank._hidden(), rebuilding(True)
    weights = [tensor for unit in rank.units.values() for tensor in (unit.parameters, unit.gradients)]
    outside = [x, upstream, *chain(*rank.batch.rope.values()), *weights]
    with MemoryTracker() as tracker:
        for tensor in outside:
            tracker.watch(tensor)
        start = tracker.live_bytes
        out = block_forward(rank.segment, rank.env, x, rank.weights, rank.batch, saved)
        assert tracker.peak_bytes - start == (
            footprint.saved_bytes + footprint.output_bytes + footprint.forward_workspace_bytes
        )
        del out
        assert tracker.live_bytes - start == footprint.saved_bytes
        tracker.peak_bytes = tracker.live_bytes
        grad = block_backward(rank.segment, rank.env, upstream, x, rank.weights, rank.batch, saved)
        held = footprint.saved_bytes + grad.nbytes + footprint.backward_workspace_bytes
        assert tracker.peak_bytes - start == held
        assert tracker.live_bytes - start == grad.nbytes


def test_model_flops_are_those_of_the_matrices_and_of_causal_attention() -> None:
    """The example's attention is as large as that of a built-in block: both are counted alike."""
    matrices = sum(p.numel for p in build_segments(MODEL)[1].parameters if len(p.shape) > 1)
    length, head = 64, 6 * MODEL.vocab_size * MODEL.hidden_size
    attention = 6 * MODEL.num_layers * MODEL.num_heads * MODEL.head_dim * length
    assert step_flops_per_token(MODEL, length) == 6 * MODEL.num_layers * matrices + attention + head
    assert step_flops_per_token(MODEL, length, "full") == 6 * MODEL.num_layers * matrices + 2 * attention + head


# A block made for a test

NUMBERS = count(1)
"""A number for unique names: declarations are cached by a block's name."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a block of a forward, and gives the model that has it."""
    module = ModuleType("made_block")
    monkeypatch.setitem(sys.modules, "made_block", module)

    def make(forward: Any = lambda x, w, i, m: x * w["w"], parameters: Any = None, found: Any = None) -> ModelConfig:
        declared = parameters or (lambda model: [OwnParameter("w", (model.hidden_size,), None)])
        name = f"block{next(NUMBERS)}"
        setattr(module, name, found or OwnBlock(declared, forward))
        return replace(MODEL, block=f"python:made_block:{name}")

    return make


def _footprint(model: ModelConfig) -> Footprint:
    return RecordedRank(build_segments(model)[1], model, SHAPES["one rank"]).footprint("none")


def test_batched_matmuls_are_groups(made: Any) -> None:
    def forward(x: torch.Tensor, weights: Any, inputs: Any, model: ModelConfig) -> torch.Tensor:
        return x + torch.einsum("bsgi,gio->bsgo", x.unflatten(-1, (4, 16)), weights["mix"]).flatten(2)

    model = made(forward, lambda model: [OwnParameter("mix", (4, 16, 16), 0.02)])
    assert [item for item in _footprint(model).forward.items if isinstance(item, Gemm)] == [
        Gemm(4 * 128, 16, 16, groups=4)
    ]


def test_a_weight_without_a_gradient_is_no_fault(made: Any) -> None:
    names = [OwnParameter("w", (64,), None), OwnParameter("unused", (64, 3), 0.02)]
    assert _footprint(made(parameters=lambda model: names)).backward.flops == 0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"forward": lambda x, w, i, m: x[:, 1:]}, r"forward gives a tensor \[2, 63, 64\] of torch.float32; allowed"),
        ({"forward": lambda x, w, i, m: x.double()}, "of torch.float64; allowed: a tensor"),
        ({"forward": lambda x, w, i, m: None}, "forward gives None; allowed: a tensor"),
        ({"forward": lambda x, w, i, m: x}, "forward gives memory that it was given; what works: x.clone"),
        ({"forward": lambda x, w, i, m: x * float(x.sum())}, "forward fails on x .* without data"),
        ({"forward": lambda x, w, i, m: x * w["other"]}, "forward fails on x .* without data: KeyError: 'other'"),
        ({"forward": lambda x, w, i, m: torch.zeros_like(x)}, "depends on no input or weight"),
        ({"parameters": lambda m: []}, "parameters declares nothing"),
        ({"parameters": lambda m: [("w", (3,))]}, r"parameters gives \('w', \(3,\)\); allowed: OwnParameter"),
        ({"parameters": lambda m: [OwnParameter("w", (), None)]}, r"w has the shape \(\)"),
        ({"parameters": lambda m: [OwnParameter("w", (3,), -1.0)]}, "w has init_std = -1.0"),
        ({"parameters": lambda m: [OwnParameter("w", (3,), None)] * 2}, "declares 'w' twice"),
        ({"parameters": lambda m: 1 / 0}, "parameters: ZeroDivisionError"),
        ({"found": print}, "made_block.block[0-9]+ is <built-in function print>; allowed: an OwnBlock"),
    ],
)
def test_what_is_no_block_is_refused(made: Any, what: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _footprint(made(**what))
    assert str(caught.value).startswith("model.block = 'python:made_block:block")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parallel_block", "'python:MODULE:NAME'"),
        ("python:parallel_block", "'python:MODULE:NAME'"),
        ("python:no_such_module:BLOCK", "cannot import no_such_module: ModuleNotFoundError"),
        ("python:tests.support.own_block:absent", "tests.support.own_block.absent is None"),
    ],
)
def test_a_name_of_nothing_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        own_block(name)


@pytest.mark.parametrize("key", ["num_experts", "mtp_layers", "key_value_rank"])
def test_parts_of_built_in_blocks_are_refused(key: str) -> None:
    with pytest.raises(UserError, match=f"has no {key}, and model.{key} = 2; a value that works: {key} = 0"):
        check_model(replace(MODEL, **{key: 2}))
