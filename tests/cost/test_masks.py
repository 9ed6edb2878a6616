"""The work that document masks leave of causal attention, against documents drawn at random."""

import random
from dataclasses import replace

import pytest

from fourfold.config import ModelSection
from fourfold.config.run_file import parse_run
from fourfold.cost.prices import Prices, Windows, masked_share
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.work import Attention, Gemm
from fourfold.plan.request import Request
from fourfold.program import resolve_step
from fourfold.simulate.run_prices import prices_for

SCORES = Attention(1, 2048, 2048, 8, 8, 64, 64)
GEMM = Gemm(2048, 2048, 2048)
BATCH = {"global_sequences": 8, "sequence_length": 2048, "steps": 1}


@pytest.mark.parametrize("mean", [100, 1000, 4000])
def test_the_share_is_that_of_documents_drawn_at_random(mean: int) -> None:
    generator, length = random.Random(mean), 2000
    pairs = windows = 0
    for _ in range(4000):
        run = 0
        for _ in range(length):
            run = 1 if generator.random() < 1 / mean else run + 1
            pairs += run
        windows += 1
    measured = pairs / windows / (length * (length + 1) / 2)
    assert masked_share(length, mean) == pytest.approx(measured, rel=0.02)


def test_limits() -> None:
    assert masked_share(8192, 1) == pytest.approx(2 / 8192, rel=1e-3)
    assert masked_share(8192, 10**12) == pytest.approx(1.0)
    assert masked_share(8192, 10**7) < masked_share(8192, 10**8) <= 1.0
    shares = [masked_share(8192, mean) for mean in (10, 100, 1000, 10_000, 10**8, 10**9)]
    assert shares == sorted(shares)


def test_a_run_with_documents_pays_for_the_attention_within_them() -> None:
    def prices(**data: object) -> Prices:
        config = parse_run({"model": {"preset": "llama3-8b"}, "batch": BATCH, "data": data}, source="test")
        model = resolve_model(config.model)
        spec = resolve_step(config, model, resolve_layout(config, model))
        return prices_for(config, spec, load_cluster("dgx-h100:8"))

    unmasked, documents = prices(document_mask=True), prices(document_mask=True, document_tokens=500)
    assert documents.kernel(SCORES) == pytest.approx(unmasked.kernel(SCORES) * masked_share(2048, 500))
    assert documents.kernel(GEMM) == unmasked.kernel(GEMM)
    assert prices(document_tokens=500, document_mask=False).kernel(SCORES) == unmasked.kernel(SCORES)


def test_a_search_of_longer_sequences_keeps_the_documents() -> None:
    model = resolve_model(ModelSection(preset="llama3-8b"))
    asked = Request.of(model, load_cluster("dgx-h100:8"), 2048, 64, document_mask=True, document_tokens=500)
    assert asked.template.masked_share == masked_share(2048, 500)
    longer = asked.of_length(8192, 16)
    assert longer.template.masked_share == masked_share(8192, 500)
    assert replace(asked, document_mask=False).of_length(8192, 16).template.masked_share == 1


@pytest.mark.parametrize(("length", "window"), [(2000, 100), (2000, 1500), (100, 100), (100, 4096)])
def test_a_windows_share_is_that_of_its_pairs(length: int, window: int) -> None:
    pairs = sum(min(query + 1, window) for query in range(length))
    assert Windows(window).share(length) == pytest.approx(pairs / (length * (length + 1) / 2), rel=0.01)
