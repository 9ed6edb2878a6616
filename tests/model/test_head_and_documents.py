"""The head in chunks, microbatches without targets, and attention that never leaves a document."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model import head
from fourfold.model.context.attention import attend_forward
from fourfold.model.environment import Saved
from fourfold.model.footprint import segment_footprint
from fourfold.model.shape import Shape, chunk_tokens, kernel_chunk_tokens
from fourfold.model.spec import build_segments
from fourfold.model.work import Gemm
from tests.support.plain_model import PlainModel, random_tokens
from tools.waves import waste

MODEL = ModelConfig(2, 16, 4, 2, 4, 24, 37)
TIED = ModelConfig(2, 16, 4, 2, 4, 24, 37, tie_embeddings=True)


def _run(plain: PlainModel, tokens: Tensor, targets: Tensor, count: int = 7) -> tuple[Tensor, dict[str, Tensor]]:
    plain.zero_gradients()
    loss = plain.loss_and_gradients(plain.microbatch(tokens, targets), count)
    return loss, {name: grad.clone() for name, grad in plain.gradients().items()}


# Chunks


@pytest.mark.parametrize("size", [1, 2, 5, 16, 37, 38, 39])
@pytest.mark.parametrize("model", [MODEL, TIED], ids=["untied", "tied"])
def test_the_head_in_chunks_equals_the_head_at_once(
    size: int, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PlainModel(model)
    tokens, targets = random_tokens(model, 2, 19)
    loss, gradients = _run(plain, tokens, targets)
    evaluated = plain.loss(plain.microbatch(tokens, targets))
    sizes = []

    def small(vocab_size: int, accelerator: bool) -> int:
        assert not accelerator
        sizes.append(vocab_size)
        return size

    monkeypatch.setattr(head, "chunk_tokens", small)
    chunked_loss, chunked = _run(plain, tokens, targets)
    assert sizes, "the chunk size is asked for"
    assert chunked_loss.item() == pytest.approx(loss.item(), rel=1e-13)
    assert plain.loss(plain.microbatch(tokens, targets)).item() == pytest.approx(evaluated.item(), rel=1e-13)
    for name, grad in gradients.items():
        torch.testing.assert_close(chunked[name], grad, rtol=1e-10, atol=1e-14, msg=name)


@pytest.mark.parametrize("vocab_size", [1, 99, 4096, 32000, 128256, 10**6])
def test_a_chunk_holds_few_logits_but_enough_tokens(vocab_size: int) -> None:
    tokens = chunk_tokens(vocab_size)
    assert tokens >= 128
    assert tokens * vocab_size <= max(2**21, 128 * vocab_size)
    assert tokens <= chunk_tokens(vocab_size, accelerator=True) <= max(2**26 // vocab_size, 128)


@pytest.mark.parametrize("vocab_size", [1, 99, 4096, 16032, 32000, 50257, 128256, 151936, 256000, 10**6])
def test_an_accelerators_chunk_is_full_tiles(vocab_size: int) -> None:
    """A multiple of 1,024 tokens, as many as memory has room for; of 256 where not even 1,024 have; else 128."""
    for tokens, room in (
        (chunk_tokens(vocab_size, accelerator=True), 2**26 // vocab_size),
        (kernel_chunk_tokens(vocab_size), 3 * 2**26 // vocab_size),
    ):
        step = next((each for each in (1024, 256) if room >= each), 128)
        assert tokens % step == 0
        assert tokens <= max(room, 128) < tokens + max(step, 129)


@pytest.mark.parametrize("kernels", [False, True])
def test_the_head_of_an_accelerator_takes_full_tiles(kernels: bool) -> None:
    """Logits of a 1B Llama's vocabulary, 4,096 tokens; kernels, which hold no copy of them in fp32, take more at once, in no more
    memory than formulas."""
    model = replace(MODEL, hidden_size=64, vocab_size=128256)
    head = build_segments(model)[-1]
    shapes = [Shape(1, 4096, "bf16", "fp32", False, exchange=False, kernels=each) for each in (False, True)]
    formulas, own = (segment_footprint(head, model, shape, "none") for shape in shapes)
    rows = [item.rows for item in (own if kernels else formulas).forward.items if isinstance(item, Gemm)]
    assert rows == ([1024] * 4 if kernels else [512] * 8)
    assert own.backward_workspace_bytes <= formulas.backward_workspace_bytes


@pytest.mark.parametrize("hidden", [2048, 3072, 4096, 5120, 8192])
def test_chunks_where_kernels_run_take_no_more_waves(hidden: int) -> None:
    """The logits and the gradient of hidden states of 4,096 tokens, beside 523 tokens, for which 2^26 logits of 128,256
    columns have room."""
    assert kernel_chunk_tokens(128256) == 1024
    odd, full = (_waves([size] * (4096 // size) + [4096 % size], hidden) for size in (523, 1024))
    assert full < 0.95 * odd


def _waves(chunks: list[int], hidden: int) -> int:
    matmuls = [Gemm(rows, *sizes) for rows in chunks if rows for sizes in ((hidden, 128256), (128256, hidden))]
    return sum(waste(gemm).waves * prod(waste(gemm).tile) * gemm.inner for gemm in matmuls)


@pytest.mark.parametrize("cap", [None, 0.4])
def test_logits_agree_with_the_loss(cap: float | None) -> None:
    plain = PlainModel(replace(MODEL, logit_softcap=cap))
    tokens, targets = random_tokens(MODEL, 2, 19)
    batch = plain.microbatch(tokens, targets)
    logits = head.head_logits(plain.env, plain.hidden(batch), plain.weights["head"])  # type: ignore[arg-type]
    expected = torch.nn.functional.cross_entropy(logits.view(-1, 37), targets.view(-1), reduction="sum")
    assert plain.loss(batch).item() == pytest.approx(expected.item(), rel=1e-12)
    assert cap is None or 0.2 * cap < logits.abs().max() < cap


# Targets


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [0, 7], ids=["nor has the global batch", "others have"])
@pytest.mark.parametrize("model", [MODEL, TIED], ids=["untied", "tied"])
def test_a_microbatch_without_targets_has_no_loss_and_no_gradient(
    model: ModelConfig, dtype: torch.dtype, count: int
) -> None:
    plain = PlainModel(model, dtype)
    tokens, targets = random_tokens(model, 2, 19)
    loss, gradients = _run(plain, tokens, torch.full_like(targets, -100), count)
    assert loss.item() == 0
    assert plain.loss(plain.microbatch(tokens, torch.full_like(targets, -100))).item() == 0
    for name, grad in gradients.items():
        assert not grad.any(), name
    assert _run(plain, tokens, targets)[0].item() > 0


def test_what_stands_at_an_ignored_target_does_not_matter() -> None:
    """Tokens after the last target of a row, and logits at ignored positions, change nothing."""
    plain = PlainModel(MODEL)
    tokens, targets = random_tokens(MODEL, 2, 19)
    targets[:, 12:] = -100
    loss, gradients = _run(plain, tokens, targets)
    tokens[:, 12:] = (tokens[:, 12:] + 1) % 37
    changed_loss, changed = _run(plain, tokens, targets)
    assert loss.item() == pytest.approx(changed_loss.item(), rel=1e-14)
    for name, grad in gradients.items():
        torch.testing.assert_close(changed[name], grad, rtol=1e-10, atol=1e-14)


def test_the_divisor_scales_the_gradient_and_not_the_loss() -> None:
    plain = PlainModel(MODEL)
    tokens, targets = random_tokens(MODEL, 2, 19)
    loss, gradients = _run(plain, tokens, targets, count=1)
    loss_5, gradients_5 = _run(plain, tokens, targets, count=5)
    assert loss.item() == loss_5.item()
    for name, grad in gradients.items():
        torch.testing.assert_close(gradients_5[name] * 5, grad, rtol=1e-10, atol=1e-12)


def test_large_logits_overflow_nothing() -> None:
    plain = PlainModel(MODEL, torch.float32)
    plain.parameters()["lm_head.weight"].mul_(1e4)
    tokens, targets = random_tokens(MODEL, 2, 19)
    loss, gradients = _run(plain, tokens, targets)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(grad).all() for grad in gradients.values())


# Documents


def _lengths(rng: np.random.Generator, length: int, rows: int) -> list[list[int]]:
    result = []
    for _ in range(rows):
        cuts = sorted({int(c) for c in rng.integers(1, length, 3)})
        result.append([b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)])
    return result


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 24))
def test_masked_documents_equal_documents_run_alone(seed: int, length: int) -> None:
    plain = PlainModel(MODEL)
    tokens, targets = random_tokens(MODEL, 2, length, seed)
    documents = _lengths(np.random.default_rng(seed), length, 2)
    plain.zero_gradients()
    together = plain.loss_and_gradients(plain.microbatch(tokens, targets, documents), 7)
    expected = {name: grad.clone() for name, grad in plain.gradients().items()}
    plain.zero_gradients()
    alone = 0.0
    for row, lengths in enumerate(documents):
        start = 0
        for size in lengths:
            part = (slice(row, row + 1), slice(start, start + size))
            alone += plain.loss_and_gradients(plain.microbatch(tokens[part], targets[part]), 7).item()
            start += size
    assert together.item() == pytest.approx(alone, rel=1e-12)
    for name, grad in plain.gradients().items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nothing_leaks_between_documents(dtype: torch.dtype) -> None:
    """Another document in the same row changes; the outputs of this one do not, in a single bit."""
    plain = PlainModel(MODEL, dtype)
    tokens, targets = random_tokens(MODEL, 2, 20)
    documents = [[6, 9, 5], [20]]
    before = plain.hidden(plain.microbatch(tokens, targets, documents)).view(2, 20, -1)
    changed = tokens.clone()
    changed[0, 6:15] = (changed[0, 6:15] + 1) % 37
    after = plain.hidden(plain.microbatch(changed, targets, documents)).view(2, 20, -1)
    assert torch.equal(before[0, :6], after[0, :6])
    assert torch.equal(before[0, 15:], after[0, 15:])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0, 6:15], after[0, 6:15])
    open_attention = plain.hidden(plain.microbatch(changed, targets)), plain.hidden(plain.microbatch(tokens, targets))
    assert not torch.equal(open_attention[0][15:20], open_attention[1][15:20]), "without documents it would be seen"


def test_attention_looks_back_only() -> None:
    rng, env = np.random.default_rng(0), PlainModel(MODEL).env
    q, k, v = (torch.from_numpy(rng.normal(0, 1, (2, 12, heads, 4))) for heads in (4, 2, 2))
    before = attend_forward(env, [q, k, v], None, Saved(keeps=False))
    k[:, 8:], v[:, 8:] = 0.5, 0.25
    after = attend_forward(env, [q, k, v], None, Saved(keeps=False))
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_one_document_that_fills_the_row_is_no_mask_at_all() -> None:
    plain = PlainModel(MODEL)
    tokens, targets = random_tokens(MODEL, 3, 15)
    full = plain.hidden(plain.microbatch(tokens, targets))
    masked = plain.hidden(plain.microbatch(tokens, targets, [[15]] * 3))
    torch.testing.assert_close(masked, full, rtol=1e-12, atol=1e-13)
