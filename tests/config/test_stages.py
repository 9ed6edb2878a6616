"""The course of a run: every step has one batch and one stage, nothing is counted twice, and peers give the same numbers."""

import math
import tomllib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourfold.config import RunConfig, UserError, dump_run, num_steps, parse_run
from fourfold.config.stages import Course, course_of, decayed

LENGTH = 16


def run(**sections: Any) -> RunConfig:
    batch = {"global_sequences": 8, "sequence_length": LENGTH, "steps": 40, **sections.pop("batch", {})}
    return parse_run({"batch": {k: v for k, v in batch.items() if v is not None}, **sections})


def walked(course: Course) -> list[tuple[int, int]]:
    """(tokens, sequences) behind every step, counted step by step."""
    found, tokens, samples = [], 0, 0
    for step in range(course.steps):
        batch = course.batch_at(step)
        found.append((tokens, samples))
        tokens, samples = tokens + batch.sequences * batch.length, samples + batch.sequences
    return [*found, (tokens, samples)]


sizes = st.lists(st.integers(1, 12), max_size=4)
ends = st.lists(st.integers(1, 30), min_size=4, max_size=4, unique=True).map(sorted)


@given(sizes, ends, st.sampled_from(["steps", "tokens", "sequences"]), st.integers(1, 5), st.integers(3, 9))
def test_what_is_behind_a_step_is_the_sum_of_the_steps_before_it(points, limits, unit, length, second) -> None:
    per = {"steps": 1, "tokens": 7 * LENGTH, "sequences": 7}[unit]
    ramp = [{"global_sequences": size, f"until_{unit}": end * per} for size, end in zip(points, limits, strict=False)]
    stages = [{"until_steps": 12}, {"batch": {"sequence_length": length}, "until_tokens": None}, {}]
    stages[1]["until_steps"] = 12 + second
    stages = [{key: value for key, value in stage.items() if value is not None} for stage in stages]
    course = course_of(run(batch={"ramp": ramp, "steps": 40}, stage=stages))
    found = walked(course)
    assert [(course.tokens_before(k), course.samples_before(k)) for k in range(course.steps + 1)] == found
    assert (course.steps, course.tokens) == (40, found[-1][0])
    assert (
        [stage.begin for stage in course.stages[1:]] == [stage.end for stage in course.stages[:-1]] == [12, 12 + second]
    )
    for before, after in pairwise(course.batches):
        assert before.end == after.step
        assert before.step < before.end
    for tokens in range(0, course.tokens, 97):
        step = course.step_after(tokens)
        assert course.tokens_before(step) >= tokens
        assert step == 0 or course.tokens_before(step - 1) < tokens


def test_a_run_of_one_stage_counts_as_its_keys_say() -> None:
    assert num_steps(run(batch={"steps": None, "tokens": 8 * LENGTH * 5 + 1})) == 6
    course = course_of(run())
    assert len(course.stages) == len(course.batches) == 1
    assert course.tokens == 40 * 8 * LENGTH


def test_keys_of_a_stage_hold_until_another_states_them() -> None:
    stages = [
        {"until_steps": 10, "name": "short"},
        {"until_tokens": 10 * 8 * LENGTH + 5 * 4 * 64 - 1, "batch": {"sequence_length": 64, "global_sequences": 4}},
        {"model": {"rope_theta": 5e5}, "layout": {"tp": 2}},
    ]
    course = course_of(run(layout={"dp_shard": 4, "zero": 3}, stage=stages))
    assert [(stage.begin, stage.end) for stage in course.stages] == [(0, 10), (10, 15), (15, 40)]
    last = course.stages[2].config
    assert (last.batch.sequence_length, last.batch.global_sequences, last.model.rope_theta) == (64, 4, 5e5)
    assert (last.layout.tp, last.layout.zero, last.layout.dp_shard) == (2, 3, None)  # the ranks are filled anew
    assert str(course.stages[0]) == "stage 1 (short)"


def test_a_staged_run_reads_back_as_itself(tmp_path) -> None:
    stages = [
        {"until_steps": 10},
        {"batch": {"sequence_length": 64}, "data": {"corpus": [{"path": "a", "weight": 2.0}]}},
    ]
    config = run(stage=stages, batch={"ramp": [{"global_sequences": 2, "by": 2, "until_tokens": 999}]})
    (tmp_path / "run.toml").write_text(dump_run(config))
    from fourfold.config import load_run

    assert load_run(tmp_path / "run.toml") == config


def megatron_batch(samples: int, start: int, by: int, over: int, full: int) -> int:
    """The global batch where so many samples are behind: `--rampup-batch-size START BY OVER`."""
    return full if samples > over else start + int(samples / (over / ((full - start) // by))) * by


def test_batches_rise_as_megatron_lm_has_them() -> None:
    start, by, over, full = 16, 8, 2_500, 48
    ramp = [{"global_sequences": start, "by": by, "until_sequences": over}]
    course = course_of(run(batch={"global_sequences": full, "steps": 200, "ramp": ramp}))
    for step in range(200):
        expected = megatron_batch(course.samples_before(step), start, by, over, full)
        assert course.batch_at(step).sequences == expected, step


def test_batches_rise_by_tokens_as_a_list_of_sizes_says() -> None:
    points = [
        (8, 1_000),
        (16, 5_000),
        (32, 20_000),
    ]  # OLMo-core's `BatchSizeWarmup`: sizes, and the tokens at which each ends
    ramp = [{"global_sequences": size, "until_tokens": tokens} for size, tokens in points]
    course = course_of(run(batch={"global_sequences": 64, "steps": 100, "ramp": ramp}))
    for step in range(100):
        behind = course.tokens_before(step)
        assert course.batch_at(step).sequences == next((size for size, end in points if behind < end), 64)


def megatron_rate(samples: int, lr: float, least: float, warmup: int, total: int, style: str, decay: int) -> float:
    """`OptimizerParamScheduler` of Megatron-LM, which counts samples before the step."""
    if warmup and samples <= warmup:
        return lr * samples / warmup
    progress = (samples - warmup) / (total - warmup)
    share = {"linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}.get(style)
    if share is None:  # WSD, decay minus_sqrt
        share = 1.0 if samples <= total - decay else 1 - math.sqrt((samples - (total - decay)) / decay)
    return least + share * (lr - least)


@pytest.mark.parametrize("style", ["linear", "cosine", "wsd"])
def test_rates_over_a_ramp_are_those_of_megatron_lm(style: str) -> None:
    ramp = [{"global_sequences": 16, "by": 8, "until_sequences": 700}]
    warmup, decay = 320, 480  # samples
    optimizer = {"lr": 3e-3, "schedule": style, "min_lr_ratio": 0.1, "rate_at": "before", "progress": "tokens"}
    optimizer["warmup_tokens"] = warmup * LENGTH
    if style == "wsd":
        optimizer |= {"decay_tokens": decay * LENGTH, "decay_shape": "sqrt"}
    course = course_of(run(batch={"global_sequences": 48, "steps": 60, "ramp": ramp}, optimizer=optimizer))
    total = course.samples_before(60)
    expected = [
        megatron_rate(course.samples_before(step), 3e-3, 3e-4, warmup, total, style, decay) for step in range(60)
    ]
    assert [course.learning_rate(step) for step in range(60)] == pytest.approx(expected, rel=1e-12)


def olmo_rate(step: int, lr: float, warmup: int, total: int, decay: int) -> float:
    """OLMo-core's `WSD`, whose steps count from 1."""
    if step <= warmup:
        return lr * step / warmup
    return lr * min(total - step, decay) / decay if step >= total - decay else lr


def test_rates_are_those_of_olmo_core() -> None:
    optimizer = {
        "lr": 1e-3,
        "schedule": "wsd",
        "warmup_steps": 5,
        "decay_steps": 12,
        "min_lr_ratio": 0.0,
        "rate_at": "after",
    }
    course = course_of(run(optimizer=optimizer))
    expected = [olmo_rate(step + 1, 1e-3, 5, 40, 12) for step in range(40)]
    assert [course.learning_rate(step) for step in range(40)] == pytest.approx(expected, rel=1e-12)


def test_a_schedule_begins_with_the_stage_that_states_it_and_others_take_part_in_it() -> None:
    stages = [
        {"until_steps": 10},
        {"until_steps": 20, "batch": {"sequence_length": 64}},
        {"until_steps": 30, "optimizer": {"schedule": "linear", "lr": 5e-4, "min_lr_ratio": 0.0}},
        {"optimizer": {"weight_decay": 0.0}},
    ]
    course = course_of(run(optimizer={"lr": 1e-3, "schedule": "cosine", "warmup_steps": 4}, stage=stages))
    rates = [course.learning_rate(step) for step in range(40)]
    alone = course_of(run(batch={"steps": 20}, optimizer={"lr": 1e-3, "schedule": "cosine", "warmup_steps": 4}))
    assert rates[:20] == [alone.learning_rate(step) for step in range(20)]
    assert rates[20:] == pytest.approx([5e-4 * (1 - step / 19) for step in range(20)])


def test_warmup_and_decay_over_tokens_meet_where_the_tokens_say() -> None:
    stages = [{"until_steps": 10}, {"batch": {"sequence_length": 4 * LENGTH}}]
    tokens = 8 * LENGTH
    optimizer = {
        "lr": 1.0,
        "schedule": "wsd",
        "progress": "tokens",
        "warmup_tokens": 4 * tokens,
        "decay_tokens": 8 * tokens,
    }
    course = course_of(run(batch={"steps": 20}, stage=stages, optimizer={**optimizer, "min_lr_ratio": 0.0}))
    rates = [course.learning_rate(step) for step in range(20)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[-4:] == pytest.approx(
        [1.0, 1.0, 0.5, 0.0]
    )  # a step of the second stage reads half of the decay's tokens


OF_STAGES = [
    [],
    [{"until_steps": 8}, {"batch": {"sequence_length": 64}}],
    [{"until_steps": 8}, {"optimizer": {"schedule": "linear"}}],
]


@pytest.mark.parametrize("stages", OF_STAGES)
@pytest.mark.parametrize("step", [5, 8, 20])
@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant", "inverse_root"])
def test_a_late_decay_leaves_the_past_and_begins_where_the_rate_stood(stages, step: int, schedule: str) -> None:
    config = run(optimizer={"lr": 1e-3, "schedule": schedule, "warmup_steps": 4}, stage=stages)
    before, after = course_of(config), course_of(decayed(config, step, 7))
    assert (after.steps, after.stage_at(step).begin) == (step + 7, step)
    assert [after.learning_rate(k) for k in range(step)] == [before.learning_rate(k) for k in range(step)]
    assert [after.tokens_before(k) for k in range(step + 1)] == [before.tokens_before(k) for k in range(step + 1)]
    there = before.learning_rate(step) if before.stage_at(step).begin < step else after.learning_rate(step)
    assert [after.learning_rate(step + k) for k in range(7)] == pytest.approx([there * (1 - k / 6) for k in range(7)])
    assert parse_run(tomllib.loads(dump_run(decayed(config, step, 7)))) == decayed(config, step, 7)


REFUSED = [
    ({"stage": [{}, {}]}, "stage 1: until_steps is missing"),
    ({"stage": [{"until_steps": 5, "until_tokens": 9}, {}]}, "are both stated"),
    ({"stage": [{"until_steps": 5}, {"until_steps": 5}, {}]}, "stage 2 has no step"),
    ({"stage": [{"until_steps": 40}, {}]}, "stage 2 has no step"),
    ({"stage": [{"until_steps": 5}, {"until_steps": 39}]}, "stage 2 ends at step 39"),
    (
        {"stage": [{"until_steps": 5}, {"model": {"num_layers": 3}}]},
        "stage 2: model.num_layers does not change within a run",
    ),
    ({"stage": [{"until_steps": 5}, {"optimizer": {"name": "sgd"}}]}, "optimizer.name does not change within a run"),
    ({"stage": [{"until_steps": 5}, {"layout": {"tp": "two"}}]}, "stage 2: layout.tp"),
    ({"stage": [{"until_steps": 5}, {"layout": {"tpp": 2}}]}, "unknown key 'layout.tpp'"),
    ({"stage": [{"until_step": 5}, {}]}, "unknown key 'stage 1: until_step'"),
    ({"batch": {"ramp": [{"global_sequences": 2}]}}, "states 0 of until_steps"),
    ({"batch": {"ramp": [{"global_sequences": 3, "by": 2, "until_steps": 5}]}}, "not a whole number of times"),
    (
        {"batch": {"ramp": [{"global_sequences": 2, "until_steps": 5}, {"global_sequences": 4, "until_steps": 5}]}},
        "rising ends",
    ),
    ({"optimizer": {"schedule": "points"}}, "optimizer.points is missing"),
    ({"optimizer": {"schedule": "points", "points": [[5, 1.0], [5, 0.5]]}}, "positions must rise"),
    ({"optimizer": {"warmup_steps": 5, "warmup_tokens": 5}}, "are both stated"),
    ({"optimizer": {"decay_steps": 5}}, "decays from warm-up to the end"),
]


@pytest.mark.parametrize(("sections", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_a_course_that_cannot_be_is_refused_with_its_place(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        course_of(run(**sections))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_horizon_within_the_warmup_from_which_the_rate_would_leap_is_refused() -> None:
    optimizer = {"schedule": "cosine", "warmup_steps": 10, "horizon_steps": 5}
    with pytest.raises(UserError, match=r"horizon_steps = 5: .* warm-up of 10 steps; .*horizon_steps=20"):
        course_of(run(batch={"steps": 20}, optimizer=optimizer))
    course_of(run(batch={"steps": 10}, optimizer=optimizer))  # it ends before
    for works in ({"horizon_steps": 20}, {"warmup_steps": 0}):
        course_of(run(batch={"steps": 20}, optimizer={**optimizer, **works}))
