"""The search keeps to the limits of a trainer, which shorten the enumeration before anything is priced."""

from dataclasses import replace

import pytest

from fourfold.export import EXPORTS, TrainerJob
from fourfold.plan.bound import Bounder
from fourfold.plan.constraints import Limit
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import block_shapes
from fourfold.plan.trainers import TRAINERS
from fourfold.program.schedule import find_schedule
from tests.plan.test_bounds import EXPERTS, request

KEYS = {"megatron": "megatron", "torchtitan": "torch", "deepspeed": "deepspeed"}


def held(trainer: str, devices: int = 8, sequences: int = 16, **more) -> Request:
    asked, record = request(devices, sequences, **more), TRAINERS[trainer]
    return replace(asked, constraints=record.constraints, sequence_parallel=record.sequence_parallel)


def every_candidate(asked: Request) -> list:
    bounder = Bounder(asked)
    tables = [table for shape in block_shapes(asked) if (table := bounder.bounds(shape)) is not None]
    return [table.candidate(index) for table in tables for index in range(len(table))]


@pytest.mark.parametrize("more", [{}, pytest.param(EXPERTS, marks=pytest.mark.rest)], ids=["dense", "experts"])
@pytest.mark.parametrize("trainer", KEYS)
def test_every_layout_is_one_that_the_trainer_can_run(trainer: str, more: dict) -> None:
    asked = held(trainer, **more)
    found = every_candidate(asked)
    assert found
    for layout in found:
        assert asked.permits(layout)
        assert layout.pp == 1 or KEYS[trainer] in find_schedule(layout.schedule).names
        if trainer == "deepspeed":
            assert layout.virtual_stages == 1
            assert layout.pp == 1 or (layout.zero < 2 and layout.cp == 1)
            assert layout.cp == 1 or (layout.cp_method == "ulysses" and layout.tp == 1)
        if trainer == "torchtitan":
            assert layout.zero != 1
            assert layout.etp == 1
        if trainer == "megatron":
            assert layout.pp == 1 or layout.zero < 2
            microbatches = asked.global_sequences // (layout.dp * layout.microbatch_sequences)
            assert layout.virtual_stages == 1 or microbatches % layout.pp == 0


@pytest.mark.parametrize("trainer", KEYS)
def test_the_best_of_a_trainer_can_be_written_down_for_it(trainer: str) -> None:
    """No schedule, ZeRO stage, order of axes or context parallelism that its export leaves out or changes."""
    asked = held(trainer)
    for priced in search(asked, keep=3).best:
        missing = EXPORTS[trainer](TrainerJob(asked, priced.candidate)).left_out
        assert not [
            line for line in missing if line.startswith(("the schedule", "ZeRO", "cp =", "dp_replicate", "shards"))
        ]
        assert not [line for line in missing if "outermost" in line]


def test_without_a_trainer_or_with_fourfold_nothing_is_left_out() -> None:
    assert every_candidate(held("fourfold")) == every_candidate(request(8, 16))


def test_a_trainer_leaves_out_only_what_its_limits_name() -> None:
    """The layouts of a trainer are those of all that keep to its limits."""
    free = every_candidate(request(8, 16))
    for trainer in ("megatron", "torchtitan"):
        asked = held(trainer)
        assert every_candidate(asked) == [each for each in free if asked.permits(each)]


def test_stated_keys_shorten_the_enumeration() -> None:
    """And what is left is what bounds of all would have kept."""
    free = request(16, 32)
    asked = free.fixing({"tp": 2, "pp": (2, 4), "zero": 1, "schedule": "1f1b"})
    assert len(list(block_shapes(asked))) * 3 < len(list(block_shapes(free)))
    kept = [each for each in every_candidate(free) if asked.permits(each)]
    assert every_candidate(asked) == kept
    assert search(asked).best[0].candidate in kept


def test_layouts_without_sequence_parallelism_are_priced_so() -> None:
    """Bounds hold, and every rank then holds norms' inputs in full."""
    asked, usual = held("deepspeed"), request(8, 16)
    for priced in search(asked.fixing({"tp": 4}), keep=2).best:
        assert not asked.section(priced.candidate).sequence_parallel
        assert priced.bound_seconds <= priced.seconds
        assert priced.memory_bytes > max(Pricer(usual).predict(priced.candidate).device_bytes)


def test_a_limit_beside_a_degree_matters_only_with_it() -> None:
    limit = Limit("zero", (0, 1), "pp", "somebody")
    assert limit.matters({"pp": 2})
    assert not limit.matters({"pp": 1})
    assert Limit("recompute", ("full:N",)).takes("full:12")
    assert not Limit("recompute", ("full",)).takes("full:12")
