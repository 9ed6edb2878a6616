"""Sampled steps: their memory, formats of 16 bits, modules that predict further ahead, and the steps between them."""

from dataclasses import replace

import pytest

from fourfold.config import parse_run
from fourfold.program import digest, lower_step, rank_view, verify
from tests.support.parity_check import check_bytes
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.parity_runs import run_table
from tests.support.peak_errors import check_peaks
from tests.support.programs import SAMPLED, make_spec, training
from tests.support.ranks import run_on_ranks
from tests.support.sampled_reference import sampled_reference

EVERY = {"every_steps": 1}
SMALL = {"batch": {"global_sequences": 8, "sequence_length": 16, "steps": 2}}


def samples(ranks: int, **sections) -> dict[str, list[float | None]]:
    table = run_table(**{**SMALL, "metrics": EVERY, **sections})
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    check_bytes(table, results)
    return results[0]["samples"]


def test_steps_between_are_the_plain_program() -> None:
    spec = make_spec(dp_shard=2, zero=3)
    config = parse_run({**SMALL, "metrics": {"every_steps": 4}, "faults": {"checksum_every_steps": 0}})
    steps = [spec.at_step(step, config.faults, config.metrics) for step in range(8)]
    assert [bool(each.sampled) for each in steps] == [False, False, False, True] * 2
    assert steps[0] == spec
    assert digest(lower_step(rank_view(steps[0]))) == digest(lower_step(rank_view(spec)))
    assert digest(lower_step(rank_view(steps[3]))) != digest(lower_step(rank_view(spec)))


@pytest.mark.parametrize("quantity", SAMPLED)
def test_each_quantity_is_measured_alone(quantity: str) -> None:
    spec = make_spec(pp=2, dp_shard=2, tp=2, sequence_parallel=True, sampled=(quantity,))
    assert verify(training(spec), spec) == []


def test_all_ranks_but_one_without_a_layer_that_attends_measure_scores() -> None:
    """The last stage has the head alone, and takes part in the sum."""
    found = samples(3, layout={"pp": 3, "segments_per_stage": [2, 1, 1]}, metrics={**EVERY, "of": ["attention"]})
    assert list(found) == ["largest_score"]
    assert [value is None for value in found["largest_score"]] == [True, False, False, True]


def test_the_peak_memory_of_a_sampled_step_is_predicted() -> None:
    sizes = {"batch": {"global_sequences": 4, "sequence_length": 64, "steps": 1}, "metrics": EVERY}
    check_peaks(2, run_table(layout={"zero": 3, "microbatch_sequences": 2}, **sizes), 0.01)
    check_peaks(2, run_table(layout={"cp": 2, "zero": 1}, optimizer={"name": "sgd", "lr": 0.1}, **sizes), 0.01)
    narrow = {"precision": {"compute": "bf16", "master": "split"}, "optimizer": {"state_dtype": "bf16"}}
    check_peaks(
        2, run_table(layout={"zero": 1}, **narrow, **sizes), 0.015
    )  # scores of bf16 take 3 kB more than declared


@pytest.mark.parametrize("master", ["fp32", "split"])
def test_bf16_with_fp32_weights_is_near(master: str) -> None:
    """Weights and their change are exact in fp32; activations and scores have the format's three digits."""
    exact = sampled_reference(run_table(**SMALL))
    found = samples(2, layout={"zero": 2}, precision={"compute": "bf16", "master": master})
    for name, tolerance in (
        ("weight_norm", 1e-3),
        ("activation_rms", 0.02),
        ("gradient_norm", 0.05),
        ("largest_score", 0.1),
    ):
        pairs = [(a, b) for a, b in zip(found[name], exact[name], strict=True) if b is not None]
        assert [a for a, _ in pairs] == pytest.approx([b for _, b in pairs], rel=tolerance), name


def test_modules_ahead_have_numbers_of_their_own_under_every_layout() -> None:
    model = {"num_layers": 2, "mtp_layers": 2, "mtp_loss": 0.5, "vocab_size": 96}
    alone = samples(1, model=model)
    split = samples(4, model=model, layout={"pp": 2, "tp": 2, "sequence_parallel": True, "zero": 0})
    for name, values in alone.items():
        assert [x is None for x in values] == [x is None for x in split[name]], name
        assert [x for x in split[name] if x is not None] == pytest.approx(
            [x for x in values if x is not None], rel=1e-9
        ), name
    assert all(value is not None for value in alone["activation_rms"][:-1])
    assert alone["largest_score"][3] is not None


def test_a_program_names_what_it_does_not_measure() -> None:
    spec = make_spec(dp_shard=2, zero=1, sampled=SAMPLED)
    programs = training(spec)
    steps = programs[0].instructions
    for letter in ("V>", "V*", "V-", "V+", "V"):
        index = next(i for i, step in enumerate(steps) if step.op.value == letter)
        left = (*steps[:index], *steps[index + 1 :])
        without = replace(programs[0], instructions=left)
        faults = verify({**programs, 0: without}, spec)
        named = {steps[index].short, steps[index].segment or "samples"}
        assert any(name in str(fault) for fault in faults for name in named), letter


def test_a_rank_sees_its_own_view() -> None:
    _, view = prepare_rank(0, run_table(**SMALL, metrics=EVERY), 1)
    assert view.spec.sampled == SAMPLED
