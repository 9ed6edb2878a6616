"""Shape-only tensors record what torch executes: FLOPs, collectives, launches and bytes of every pass of every kind of segment."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from fourfold.config import ModelConfig
from fourfold.model import swiglu, torch_operations
from fourfold.model.footprint import Shape
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.spec import Segment, build_segments
from fourfold.model.work import Elementwise, Join, Start, Work
from tests.support.torch_rank import TorchRank

BASE = ModelConfig(1, 64, 8, 4, 8, 96, 512)
MLA = replace(
    BASE, family="deepseek_v3", num_kv_heads=8, head_dim=12, query_rank=24, key_value_rank=16, rope_head_dim=4,
    nope_head_dim=8, value_head_dim=8, rope_interleave=True,
)  # fmt: skip
AUXILIARY = {"balance_loss": 0.3, "z_loss": 0.2}
MIXTRAL = replace(BASE, family="mixtral", num_experts=8, top_k=2, moe_ffn_size=48, router="softmax", **AUXILIARY)
DEEPSEEK = replace(
    MLA, num_experts=8, top_k=2, moe_ffn_size=48, num_shared_experts=1, router="sigmoid", routed_scaling=2.5,
    num_expert_groups=4, top_groups=2, **AUXILIARY,
)  # fmt: skip
MODELS = {
    "dense": BASE,
    "gpt2": replace(
        BASE, family="gpt2", num_kv_heads=8, norm="layer", activation="gelu", gated=False, linear_bias=True,
        qkv_bias=True, positions="learned", tie_embeddings=True, max_position=64,
    ),
    "qk norm": replace(BASE, family="qwen3", qk_norm=True, qkv_bias=True),
    "mla": MLA,
    "moe": MIXTRAL,
    "moe, shared": DEEPSEEK,
    "mtp": replace(BASE, mtp_layers=2, mtp_loss=0.3),
    "mtp, moe": replace(DEEPSEEK, mtp_layers=1, mtp_loss=0.3),
}  # fmt: skip
SPLITS = {
    "one rank": {},
    "tp": {"tp": 2},
    "tp+sequence": {"tp": 2, "sequence_parallel": True},
    "ring": {"cp_ring": 4},
    "gather": {"cp_ring": 4, "cp_gather": True},
    "ulysses": {"cp_ulysses": 2},
    "ring x ulysses, tp": {"cp_ring": 2, "cp_ulysses": 2, "tp": 2, "sequence_parallel": True},
    "ep": {"ep": 2},
    "etp": {"etp": 2},
    "tp, ep, etp": {"tp": 2, "ep": 2, "etp": 2},
    "tp+sequence, ep": {"tp": 2, "sequence_parallel": True, "ep": 4},
}


WAYS = [("none", "fp32", False), ("selective", "bf16", True), ("full", "fp32", False)]
"""(recompute, format, whether documents are masked)."""

BYTES_BOUND = 0.01
"""Tolerance for the bytes that memory-bound kernels move. The recorder leaves out biases that matmuls add, statistics that a
LayerNorm writes, and offsets that a sum of rows reads."""
LAUNCHES_BOUND = 2
"""Launches of a pass beside those recorded: a sum of rows makes its offsets first, tokens repeated by their number are two
kernels."""


@dataclass(frozen=True)
class Row:
    """One number of one pass, as recorded and as executed."""

    segment: str
    phase: str
    quantity: str
    recorded: object
    executed: object

    def __str__(self) -> str:
        return f"{self.segment:8} {self.phase:16} {self.quantity:12} {self.recorded!s:>40} {self.executed!s:>40}"


def _differences(model: ModelConfig, shape: Shape, policy: str, segment: Segment, ring_rank: int) -> list[Row]:
    rank = RecordedRank(segment, model, shape, ring_rank)
    phases = vars(rank.footprint(policy)) | (vars(rank.halves(policy)) if segment.kind == "block" else {})
    rows = []
    for name, (kernels, started) in TorchRank(segment, model, shape, ring_rank).passes(policy).items():
        recorded: Work = phases[name.replace("recompute", "forward")]
        passes = [item for item in recorded.items if isinstance(item, Elementwise)]
        flops = [item.flops for item in recorded.items if not isinstance(item, Elementwise | Start | Join)]
        pairs = {
            "FLOPs": ((sum(flops), sum(kernels.flops)) if segment.moe else (flops, kernels.flops)),
            "collectives": ([*recorded.collectives], started),
            "launches": (sum(item.launches for item in passes), kernels.launches),
            "bytes": (sum(item.bytes for item in passes), kernels.bytes),
        }
        rows += [Row(segment.name, name, quantity, *pair) for quantity, pair in pairs.items()]
    return rows


def _is_off(row: Row) -> bool:
    if row.quantity == "bytes":
        return row.recorded != pytest.approx(row.executed, rel=BYTES_BOUND)
    if row.quantity == "launches":
        return abs(row.recorded - row.executed) > LAUNCHES_BOUND  # type: ignore[operator]
    return row.recorded != row.executed


CASES = [
    (model, split)
    for model, split in product(MODELS, SPLITS)
    if MODELS[model].num_experts or not {"ep", "etp"} & set(SPLITS[split])
]


@pytest.mark.grid(1)
@pytest.mark.parametrize(("name", "split"), CASES, ids=lambda value: value.replace(" ", "_"))
def test_what_is_recorded_is_what_is_executed(name: str, split: str) -> None:
    """FLOPs of every matmul and of every attention in order (of all together where experts' rows follow the router), half of a
    causal square, and columns of padded heads counted as the kernel computes them; collectives in kind, group, bytes and order;
    bytes and launches of memory-bound kernels within the bounds above. A ring's first and last rank are both compared."""
    model, degrees = MODELS[name], SPLITS[split]
    off: list[str] = []
    for policy, compute, documents in WAYS:
        shape = Shape(2, 64, compute, "fp32", documents, **degrees)  # type: ignore[arg-type]
        for segment, rank in product(build_segments(model), {0, shape.cp_ring - 1}):
            rows = _differences(model, shape, policy, segment, rank)
            assert all(row.executed for row in rows if row.quantity == "bytes" and row.phase != "weight_gradient")
            off += [f"{policy:10} {compute} rank {rank} {row}" for row in rows if _is_off(row)]
    header = f"{'recompute':10} type rank   {Row('segment', 'pass', 'quantity', 'recorded', 'executed')}"
    assert not off, "\n".join(["", header, *off])


@pytest.mark.parametrize("name", ["dense", "qk norm", "moe"])
def test_a_block_joins_no_gradients_and_copies_no_residual(name: str) -> None:
    """Gradients of q, k and v are turned back into one array; the residual is added to a matmul's result, where that lies."""
    block = next(segment for segment in build_segments(MODELS[name]) if segment.kind == "block")
    passes = TorchRank(block, MODELS[name], Shape(2, 64, "fp32", "fp32", False), 0).passes("none")
    hidden = 4 * 2 * 64 * MODELS[name].hidden_size
    for phase, (kernels, _) in passes.items():
        large = [each for each, size in kernels.trace if size > hidden]
        assert not {"cat", "residual"} & set(large), (phase, kernels.trace)


@pytest.mark.parametrize("policy", ["none", "selective"])
def test_a_processors_blocks_of_tokens_are_recorded(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward of SwiGLU runs for some tokens after the other there; the last block is smaller."""
    monkeypatch.setattr(swiglu, "BLOCK_TOKENS", 48)
    block = next(segment for segment in build_segments(BASE) if segment.kind == "block")
    rows = _differences(BASE, Shape(2, 64, "fp32", "fp32", False), policy, block, 0)
    assert not [str(row) for row in rows if _is_off(row)]
    in_blocks = next(row for row in rows if row.phase == "backward" and row.quantity == "launches")
    monkeypatch.undo()
    before = _differences(BASE, Shape(2, 64, "fp32", "fp32", False), policy, block, 0)
    assert (
        in_blocks.executed == next(r for r in before if (r.phase, r.quantity) == ("backward", "launches")).executed + 8
    )


def test_blocks_of_tokens_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    gate_up, grad = (torch.randn(100, width, generator=generator) for width in (64, 32))
    expected = gate_up.clone()
    swiglu.swiglu_backward_(torch_operations, [grad, None], expected)
    monkeypatch.setattr(swiglu, "BLOCK_TOKENS", 48)
    swiglu.swiglu_backward_by_blocks(torch_operations, [grad, None], gate_up)
    assert torch.equal(gate_up, expected)
