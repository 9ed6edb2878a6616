"""A footprint declares what a segment does: peak and remaining live bytes, and every collective with its bytes."""

from dataclasses import replace
from typing import Any

import pytest

from fourfold.config import ModelConfig
from fourfold.model.footprint import Shape, segment_footprint, segment_halves
from fourfold.model.spec import build_segments
from tests.support.programs import make_spec
from tests.support.ranks import run_on_ranks
from tests.support.segment_memory import measure

MODEL = ModelConfig(1, 192, 6, 2, 32, 512, 2048)
LARGE_ATTENTION = replace(MODEL, ffn_size=64, num_kv_heads=6)
LARGE_VOCABULARY = replace(MODEL, vocab_size=32768, tie_embeddings=True)
ONE_KEY = replace(MODEL, num_kv_heads=1, qk_norm=True, qkv_bias=True)
GPT2 = replace(
    MODEL, family="gpt2", num_kv_heads=6, norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
    positions="learned", tie_embeddings=True, max_position=256,
)  # fmt: skip
RECURRENT = replace(
    MODEL, mixer="gated_delta", delta_key_heads=2, delta_value_heads=6, delta_key_dim=16, delta_value_dim=24
)
CHANNELS = replace(RECURRENT, mixer="kimi_delta", delta_key_heads=6, delta_key_dim=24)
SEPARATE = replace(RECURRENT, delta_projection="separate")
STRONG = replace(SEPARATE, delta_negative_eigenvalues=True, norm_placement="post")
KINDS = [(1, False), (2, False), (2, True)]
KIND_NAMES = ["one rank", "tp", "tp+sequence"]


def check_phases(tp: int, tolerance: float = 0.003, **options: Any) -> None:
    for phases in run_on_ranks(tp, measure, tp=tp, **options):
        for name, phase in phases.items():
            assert phase.collectives == phase.predicted_collectives, name
            assert phase.sent == phase.predicted_sent, name
            assert phase.after == phase.predicted_after, name
            assert phase.predicted_peak == pytest.approx(phase.peak, rel=tolerance), name


@pytest.mark.grid(2)
@pytest.mark.parametrize("documents", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence"), KINDS, ids=KIND_NAMES)
def test_bytes_and_collectives_are_as_declared(
    tp: int, sequence: bool, policy: str, compute: str, documents: bool
) -> None:
    check_phases(tp, model=MODEL, sequence=sequence, compute=compute, policy=policy, documents=documents)


@pytest.mark.grid(1)
@pytest.mark.parametrize("documents", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence"), KINDS, ids=KIND_NAMES)
def test_gpt2(tp: int, sequence: bool, policy: str, compute: str, documents: bool) -> None:
    check_phases(tp, model=GPT2, sequence=sequence, compute=compute, policy=policy, documents=documents)


@pytest.mark.grid(1)
@pytest.mark.parametrize("documents", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence"), KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize(
    "model",
    [RECURRENT, SEPARATE, STRONG, CHANNELS, replace(RECURRENT, mixer="short_convolution")],
    ids=["gated_delta", "separate", "strong", "kimi_delta", "short_convolution"],
)
@pytest.mark.parametrize("length", [128, 70])
def test_mixers_that_read_in_order(
    length: int, model: ModelConfig, tp: int, sequence: bool, policy: str, compute: str, documents: bool
) -> None:
    options = {"length": length, "compute": compute, "policy": policy, "documents": documents}
    check_phases(tp, model=model, sequence=sequence, **options)


@pytest.mark.parametrize("mixer", ["gated_delta", "short_convolution"])
def test_a_convolution_of_one_token_needs_none_of_other_ranks(mixer: Any) -> None:
    shape = Shape(2, 128, "fp32", "fp32", True, cp_ring=2)
    sent = []
    for kernel in (1, 2):
        model = replace(RECURRENT, mixer=mixer, convolution_kernel=kernel)
        footprint = segment_footprint(build_segments(model)[1], model, shape, "none")
        sent.append(len(footprint.forward.collectives) + len(footprint.backward.collectives))
    assert sent[0] == sent[1] - 2


@pytest.mark.grid(1)
@pytest.mark.parametrize("placement", ["post", "sandwich"])
@pytest.mark.parametrize("policy", ["none", "selective"])
@pytest.mark.parametrize(("tp", "sequence"), KINDS, ids=KIND_NAMES)
def test_norms_after(tp: int, sequence: bool, policy: str, placement: Any) -> None:
    """Weight gradients of a block without a norm before them read its own input, which they keep."""
    model = replace(MODEL, norm_placement=placement, zero_centered_norm=True, scaled_embedding=True)
    check_phases(tp, model=model, sequence=sequence, compute="fp32", policy=policy)


@pytest.mark.grid(1)
@pytest.mark.parametrize("policy", ["none", "selective"])
@pytest.mark.parametrize(
    ("tp", "sequence"), [*KINDS, (4, False), (4, True)], ids=[*KIND_NAMES, "tp 4", "tp 4+sequence"]
)
@pytest.mark.parametrize(
    "model", [LARGE_ATTENTION, LARGE_VOCABULARY, ONE_KEY], ids=["large attention", "large vocabulary", "one key head"]
)
def test_other_shapes(model: ModelConfig, tp: int, sequence: bool, policy: str) -> None:
    model = replace(model, num_heads=8, num_kv_heads=8 if model.num_kv_heads == 6 else model.num_kv_heads)
    check_phases(tp, model=model, sequence=sequence, compute="fp32", policy=policy, length=256, tolerance=0.01)


@pytest.mark.grid(2)
@pytest.mark.parametrize("model", [MODEL, GPT2, RECURRENT, CHANNELS], ids=["llama", "gpt2", "recurrent", "channels"])
@pytest.mark.parametrize("policy", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "sequence"), KINDS, ids=KIND_NAMES)
def test_the_two_halves_of_backward_do_what_the_full_one_does(
    model: ModelConfig, tp: int, sequence: bool, policy: str
) -> None:
    """Arithmetic and collectives are equal, in another order; the operands of W were made or kept by I."""
    shape = Shape(4, 128, "fp32", "fp32", False, tp=tp, sequence_parallel=sequence)
    block = build_segments(model)[1]
    footprint = segment_footprint(block, model, shape, policy)
    halves = segment_halves(block, model, shape, policy)
    assert halves.input_gradient.flops + halves.weight_gradient.flops == footprint.backward.flops
    sent = [*halves.input_gradient.collectives, *halves.weight_gradient.collectives]
    assert sorted(sent, key=repr) == sorted(footprint.backward.collectives, key=repr)
    assert halves.deferred_bytes > 0


def test_sequence_parallelism_sends_what_tensor_parallelism_does_and_the_gathers_for_weight_gradients() -> None:
    """Korthikanti et al. 2022, section 4.2.2: a reduce-scatter and an all-gather for an all-reduce; what is gathered anew in
    backward is extra."""
    block = build_segments(MODEL)[1]
    sent = {}
    for sequence in (False, True):
        shape = Shape(4, 128, "fp32", "fp32", False, tp=2, sequence_parallel=sequence)
        footprint = segment_footprint(block, MODEL, shape, "none")
        factor = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
        for name in ("forward", "backward"):
            collectives = getattr(footprint, name).collectives
            sent[name, sequence] = sum(factor[c.kind] * c.bytes for c in collectives)
    hidden = 4 * 128 * 192 * 4
    assert sent["forward", False] == sent["forward", True] == 4 * hidden
    assert sent["backward", False] == 4 * hidden
    assert sent["backward", True] == 6 * hidden


def test_activations_follow_the_published_formula() -> None:
    """With sequence parallelism and nothing rebuilt, what a block keeps divides by the tensor-parallel degree (Korthikanti et al.
    2022, equation 4); without it the norms' inputs and outputs do not."""
    model = ModelConfig(1, 1024, 16, 16, 64, 4096, 32000)
    block = build_segments(model)[1]

    def kept(tp: int, sequence: bool) -> int:
        shape = Shape(1, 2048, "bf16", "fp32", False, tp=tp, sequence_parallel=sequence)
        return segment_footprint(block, model, shape, "none").saved_bytes

    for tp in (2, 4, 8):
        assert kept(tp, True) * tp == kept(1, False)
        assert kept(tp, True) < kept(tp, False)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_gated_block_with_shared_heads_keeps_what_its_backward_reads(tp: int) -> None:
    """In bf16, of a token: the residual between both halves, queries, keys, values, what attention gives, gate, up; of every head
    a log-sum-exp, and of every norm a root of the mean square, in fp32. And what selective recomputation rebuilds: two normed
    inputs, and the product of gate and up. The block's input is its neighbour's output."""
    hidden, heads, kv, head, ffn = 64, 8, 2, 8, 160
    sizes = {
        "num_layers": 1,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv,
        "ffn_size": ffn,
        "vocab_size": 96,
    }
    spec = make_spec(sizes, sequence_length=32, tp=tp, sequence_parallel=tp > 1, precision={"compute": "bf16"})
    block = next(each for each in spec.segments if each.kind == "block")
    kept, rebuilt = (
        segment_footprint(block, spec.model, spec.shape, policy).saved_bytes / spec.shape.tokens
        for policy in ("none", "selective")
    )
    again = 2 * (2 * hidden + ffn)
    read = 2 * (hidden + (heads + 2 * kv) * head + heads * head + 2 * ffn) + 4 * (heads + 2)
    assert kept * tp == read + again
    assert (kept - rebuilt) * tp == again
