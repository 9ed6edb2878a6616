"""Whether a step fits is said in a word that follows its probability, and is the same in lines, documents and tables."""

import math
import random

import pytest

import fourfold as ff
from fourfold.api.simulation import SimulationResult
from fourfold.report.format_plan import plan_lines
from fourfold.report.verdict import verdict_lines
from fourfold.results.fit import LEAST, PHRASES, Fit

MODELS = ("llama3-8b", "qwen2.5-7b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "mistral-7b")


def drawn(seed: int) -> SimulationResult:
    """A step of some model, batch and layout on some cluster; many hold too much."""
    draw = random.Random(seed)
    devices, tp = draw.choice((8, 16, 32, 64)), draw.choice((1, 2, 4))
    return ff.simulate(
        {
            "model": {"preset": draw.choice(MODELS)},
            "cluster": {"preset": f"{draw.choice(('dgx-h100', 'dgx-a100', 'aws-p5'))}:{devices}"},
            "batch": {"sequence_length": draw.choice((2048, 4096, 8192)), "global_sequences": 4 * devices},
            "layout": {
                "tp": tp,
                "dp_shard": devices // tp,
                "zero": draw.choice((1, 3)),
                "recompute": draw.choice(("none", "selective", "full")),
                "microbatch_sequences": draw.choice((1, 2, 4)),
            },
            "precision": {"compute": "bf16"},
        },
        software=draw.choice(("fourfold", "megatron", "torchtitan")),
    )


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.rest) for n in range(12, 40))])
def test_the_word_follows_the_probability_and_the_line_says_both(seed: int) -> None:
    result = drawn(seed)
    line, document = verdict_lines(result.summary)[0], result.to_json(advice=False)
    fit = document["fit"]
    assert fit == result.fit.document()
    expected = next((word for least, word in LEAST if fit["probability"] >= least), "no")
    assert fit["word"] == expected
    assert result.fit == Fit(expected, fit["probability"])
    printed = int(line.split("(")[1].split(" %")[0]) / 100
    assert next((word for least, word in LEAST if printed >= least), "no") == expected, "of the printed figure, too"
    per_cent = math.floor(100 * fit["probability"] + 1e-9)  # the curve ends a rounding below a whole one
    assert line.startswith(f"memory  {PHRASES[expected]} ({per_cent} %): ")  # type: ignore[index]
    assert len(line) <= 80
    assert ("too much" in line) != result.fits
    assert ("80 % of runs" in line) == result.fits, "beside the prediction, where it is not too much anyway"
    risk = out_of_memory_of(result)
    assert fit["probability"] == pytest.approx(1 - risk)


def out_of_memory_of(result: SimulationResult) -> float:
    from fourfold.evidence.out_of_memory import out_of_memory

    prices = result.summary.step.simulation.prices
    found = out_of_memory(prices)
    assert found is not None
    return found.probability(result.memory_bytes / prices.cluster.device.memory_bytes)


def test_each_word_describes_some() -> None:
    assert {drawn(seed).fit.word for seed in range(40)} >= {"sure", "likely", "unlikely", "no"}
    assert LEAST == ((0.9, "sure"), (0.75, "likely"), (0.5, "perhaps"), (0.1, "unlikely")), "as docs/plan.md has them"


def test_rows_of_a_plan_say_the_same_as_their_steps() -> None:
    planned = ff.plan(model="qwen2.5-7b", cluster="dgx-h100:8", sequence_length=4096, batch_tokens="256k", budget=2.0)
    rows = planned.to_json()["best"]
    text = plan_lines(planned.found)
    assert planned.best is not None
    for layout, row in zip(planned.layouts, rows, strict=True):
        step = ff.simulate(planned.run(layout))
        assert row["fit"] == step.fit.document()
        assert any(step.fit.cell in line and layout.candidate.words() in line for line in text)
        assert (row["behind"] is None) == (layout.seconds >= planned.best.seconds)


def test_a_document_of_another_word_is_refused() -> None:
    assert Fit.read({"word": "likely", "probability": 0.8}) == Fit("likely", 0.8)
    for wrong in ({"word": "certain", "probability": 1.0}, {"word": "no"}, "no", {"word": "no", "probability": "x"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Fit.read(wrong)
