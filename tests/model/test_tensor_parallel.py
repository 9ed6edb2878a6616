"""Segments split over tensor-parallel ranks equal the same segments on one rank, in fp64, to rounding."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fourfold.config import ModelConfig
from fourfold.model import head
from fourfold.model.parallel import Parallel
from tests.support.plain_model import PlainModel, random_tokens
from tests.support.ranks import run_on_ranks
from tests.support.split_model import SplitModel, relative_error, run_segments, take_box, tensor_group, tensor_layout

BASE = ModelConfig(2, 24, 8, 4, 6, 40, 64)
GPT2 = replace(
    BASE, family="gpt2", num_kv_heads=8, norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
    positions="learned", tie_embeddings=True, max_position=16,
)  # fmt: skip
MODELS = {
    "llama": BASE,
    "kv heads as many as heads": replace(BASE, num_kv_heads=8),
    "one kv head": replace(BASE, num_kv_heads=1),
    "two kv heads": replace(BASE, num_kv_heads=2),
    "qk norm": replace(BASE, family="qwen3", qk_norm=True, num_kv_heads=2),
    "bias, one kv head": replace(BASE, family="qwen2", qkv_bias=True, num_kv_heads=1),
    "tied": replace(BASE, tie_embeddings=True),
    "gpt2": GPT2,
    "layer norm": replace(BASE, norm="layer"),
}
DOCUMENTS = [[5, 11], [16], [1, 2, 13]]
ROWS, LENGTH = 3, 16


def split_errors(
    rank: int,
    model: ModelConfig,
    tp: int,
    sequence: bool,
    keep: bool = True,
    deferred: bool = False,
    documents: bool = False,
    chunk: int | None = None,
) -> dict[str, float]:
    """Relative errors of everything that a pass over the segments gives, by name, on one rank."""
    if chunk is not None:
        head.chunk_tokens, before = (lambda vocab_size, accelerator: chunk), head.chunk_tokens
    full = PlainModel(model)
    layout = tensor_layout(model, tp, sequence)
    split = SplitModel(full, layout, rank)
    tokens, targets = random_tokens(model, ROWS, LENGTH)
    targets[1, 3:] = -100
    batch = full.microbatch(tokens, targets, DOCUMENTS if documents else None)
    parallel = Parallel(tp=tensor_group(layout, rank), sequence=sequence, tp_copies=layout.tp_copy)
    try:
        expected = run_segments(model, full.segments, full.weights, full.units, batch, 29)
        actual = run_segments(
            model, split.segments, split.weights, split.units, batch, 29, parallel, keep=keep, deferred=deferred
        )
    finally:
        if chunk is not None:
            head.chunk_tokens = before
    size = ROWS * LENGTH // tp if sequence else ROWS * LENGTH
    own = slice(rank * size, rank * size + size) if sequence else slice(None)
    pairs = zip(actual.hidden, expected.hidden, strict=True)
    errors = {f"hidden {i}": relative_error(a, e[own]) for i, (a, e) in enumerate(pairs)}
    pairs = zip(actual.gradients, expected.gradients, strict=True)
    errors |= {f"input gradient {i}": relative_error(a, e[own]) for i, (a, e) in enumerate(pairs)}
    errors["loss"] = relative_error(actual.loss, expected.loss)
    errors["evaluated loss"] = relative_error(actual.evaluated, expected.loss)
    gradients, parameters = full.gradients(), {p.name: p for flat in split.flats.values() for p in flat.parameters}
    for name, grad in split.summed_gradients().items():
        assert gradients[name].norm() > 0, name
        part = take_box(gradients[name], parameters[name].box(split.coordinates))
        if name.endswith("k_proj.bias") and model.positions == "learned":  # scores do not depend on it
            assert (grad - part).norm() < 1e-12
            continue
        errors[name] = relative_error(grad, part)
    return errors


def check_split(ranks: int, **options: Any) -> None:
    for errors in run_on_ranks(ranks, split_errors, tp=ranks, **options):
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < 1e-10, f"{worst}: relative error {errors[worst]:.2e}"


@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sequence"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_split_segments_equal_full_ones(name: str, ranks: int, sequence: bool) -> None:
    check_split(ranks, model=MODELS[name], sequence=sequence)


@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sequence"])
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("keep", [False, True], ids=["rebuilt", "kept"])
@pytest.mark.parametrize("name", ["qk norm", "gpt2"])
def test_with_documents_and_every_way_of_backward(name: str, keep: bool, deferred: bool, sequence: bool) -> None:
    options = {"keep": keep, "deferred": deferred, "documents": True}
    check_split(2, model=MODELS[name], sequence=sequence, **options)


@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sequence"])
@pytest.mark.parametrize("chunk", [5, 48])
@pytest.mark.parametrize("name", ["llama", "tied"])
def test_the_vocabulary_in_parts_and_chunks(name: str, chunk: int, sequence: bool) -> None:
    check_split(2, model=MODELS[name], sequence=sequence, chunk=chunk)


def losses(rank: int, sequence: bool) -> tuple[float, float]:
    """The head's loss in training and evaluation, with logits far from each other on different ranks."""
    full = PlainModel(BASE, torch.float32)
    full.parameters()["lm_head.weight"].mul_(300.0)
    layout = tensor_layout(BASE, 2, sequence)
    split = SplitModel(full, layout, rank, torch.float32)
    tokens, targets = random_tokens(BASE, ROWS, LENGTH)
    batch = full.microbatch(tokens, targets)
    parallel = Parallel(tp=tensor_group(layout, rank), sequence=sequence)
    expected = run_segments(BASE, full.segments, full.weights, full.units, batch, 29)
    trace = run_segments(BASE, split.segments, split.weights, split.units, batch, 29, parallel)
    assert all(grad.isfinite().all() for grad in trace.gradients)
    assert trace.loss.item() == pytest.approx(expected.loss.item(), rel=1e-4)
    return trace.loss.item(), trace.evaluated.item()


@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sequence"])
def test_the_loss_is_the_same_to_the_bit_on_every_rank(sequence: bool) -> None:
    results = run_on_ranks(2, losses, sequence=sequence)
    assert results[0] == results[1]
    assert results[0][0] == pytest.approx(results[0][1], rel=1e-6)
