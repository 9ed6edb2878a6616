"""Row 1 is the best that can be found: laws of the search over seeded requests, and whole enumerations of small spaces."""

import random
from dataclasses import replace

import pytest

import fourfold as ff
from fourfold.config import ModelSection, UserError
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.bound import Bounder
from fourfold.plan.moves.neighbours import neighbours
from fourfold.plan.planner import make_plan
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.queue import other_orders
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import block_shapes

DENSE = {
    "vocab_size": 32000,
    "num_layers": 6,
    "hidden_size": 1024,
    "num_heads": 16,
    "num_kv_heads": 4,
    "ffn_size": 4096,
}
LARGER = DENSE | {"num_layers": 8, "hidden_size": 2048}
SMALL = {"dense": DENSE, "larger": LARGER}
NEAR, SAME = 1.02, 1.005
"""How many times the best score the bound of a layout may be that is simulated too; how much better a neighbour may be."""


def small(name: str, devices: int, share: float, length: int = 2048) -> Request:
    """A request of a few sequences a device."""
    model = resolve_model(ModelSection(**SMALL[name]))
    return Request.of(model, load_cluster(f"dgx-h100:{devices}"), length, 4 * devices, memory_share=share)


@pytest.mark.parametrize(
    ("name", "devices", "share"),
    [
        ("dense", 8, 0.95),
        pytest.param("dense", 16, 0.05, marks=pytest.mark.rest),
        pytest.param("larger", 8, 0.06, marks=pytest.mark.rest),
        pytest.param("larger", 32, 0.95, marks=pytest.mark.rest),
    ],
)
def test_no_layout_of_a_small_space_is_better(name: str, devices: int, share: float) -> None:
    """Every layout whose bound is near the best score is simulated, in every order of its axes."""
    request = small(name, devices, share)
    best = search(request, keep=1).best[0]
    pricer = Pricer(replace(request, memory_bytes=request.likely_bytes))
    bounder, simulated = Bounder(pricer.request, blocks=pricer.blocks), 0
    for bounds in filter(None, map(bounder.bounds, block_shapes(request))):
        for row in range(len(bounds)):
            layout = bounds.candidate(row)
            bound = float(bounds.seconds[row]) * pricer.outlook.weight(layout)
            if bound > NEAR * best.score or bounds.memory_bytes[row] > request.likely_bytes:
                continue
            for order in (layout.outermost, *other_orders(request, layout)):
                priced = pricer.price(replace(layout, outermost=order))
                simulated += 1
                fits = isinstance(priced, Priced) and priced.memory_bytes <= request.likely_bytes
                assert not fits or priced.score >= best.score, layout.words()  # type: ignore[union-attr]
    assert simulated


def drawn(number: int) -> Request:
    """A request of a seeded model, cluster, length and memory."""
    draw = random.Random(number)
    model = draw.choice(["llama3-8b", "qwen2.5-7b", "mixtral-8x7b", "mistral-7b"])
    cluster = f"{draw.choice(['dgx-h100', 'dgx-a100', 'aws-p5'])}:{draw.choice([8, 16, 64, 128])}"
    length, share = draw.choice([2048, 8192, 32768]), draw.choice([0.95, 0.8, 0.6])
    asked = resolve_model(ModelSection(preset=model))
    machine = load_cluster(cluster)
    return Request.of(asked, machine, length, 4 * machine.devices, memory_share=share)


SEEDS = [
    1,
    pytest.param(2, marks=pytest.mark.rest),
    *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(3, 7)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_neighbour_of_the_best_is_better(seed: int) -> None:
    """No neighbour that is likely to fit is better by more than half a per cent, and one more for each feature that it adds."""
    request = drawn(seed)
    best = make_plan(request, keep=1).best
    assert best is not None
    likely = max(request.likely_bytes, best.memory_bytes)
    pricer, tried = Pricer(replace(request, memory_bytes=likely)), 0
    for each in neighbours(request, best.candidate):
        priced = pricer.price(each)
        if isinstance(priced, Priced) and priced.memory_bytes <= likely:
            tried += 1
            assert priced.score * SAME >= best.score, each.words()
    assert tried


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_a_constraint_less_memory_and_slower_links_give_nothing_better(seed: int) -> None:
    request = drawn(seed)
    free = make_plan(request, keep=3)
    assert free.best is not None
    draw, layouts = random.Random(seed), [each.candidate for each in free.found.best]
    key = draw.choice(["tp", "pp", "zero", "microbatch_sequences"])
    limited = make_plan(request.fixing({key: getattr(draw.choice(layouts), key)}), keep=1).best
    assert limited is not None
    assert limited.score * SAME >= free.best.score
    less = make_plan(replace(request, memory_bytes=int(0.8 * request.likely_bytes)), keep=1).best
    assert less is None or less.score * SAME >= free.best.score
    levels = tuple(replace(each, bytes_per_second=each.bytes_per_second / 2) for each in request.cluster.levels)
    slower = replace(request, template=replace(request.template, cluster=replace(request.cluster, levels=levels)))
    slow = make_plan(slower, keep=1).best
    assert slow is not None
    assert slow.score * SAME >= free.best.score


def test_the_order_in_which_values_are_stated_does_not_matter() -> None:
    request = small("dense", 16, 0.95)
    ways = [{"tp": (4, 1, 2), "outermost": ("dp", "pp")}, {"outermost": ("pp", "dp"), "tp": (2, 4, 1)}]
    first, second = (search(request.fixing(way), keep=4).best for way in ways)
    assert first == second


@pytest.mark.parametrize(
    "preset",
    [
        "gpt3-175b",
        "llama3.1-8b-128",
        pytest.param("llama3-70b", marks=pytest.mark.rest),
        *(pytest.param(name, marks=pytest.mark.sweep) for name in ("mixtral-8x22b-256", "llama3-405b-16k")),
    ],
)
def test_row_one_is_as_fast_as_what_was_published(preset: str) -> None:
    """Under the same software; what was published and is not likely to fit may be faster."""
    published, planned = ff.simulate(f"preset:{preset}"), ff.plan(f"preset:{preset}", keep=1)
    assert planned.best is not None
    likely = published.memory_bytes <= planned.request.likely_bytes
    assert not likely or planned.best.seconds <= published.step_seconds


def test_what_is_first_is_plain_unless_more_buys_a_per_cent() -> None:
    """Every layout of the rows that is faster has features that the first has not."""
    for seed in (1, 4):
        planned = make_plan(drawn(seed), keep=8)
        assert planned.best is not None
        for each in planned.found.best:
            assert each.score >= planned.best.score
            if each.seconds < planned.best.seconds:
                assert each.weight > planned.best.weight


def test_neighbours_keep_to_the_constraints_and_can_be() -> None:
    request = drawn(3).fixing({"tp": (1, 2), "zero": (1, 3)})
    best = make_plan(request, keep=1).best
    assert best is not None
    found, refused = neighbours(request, best.candidate), 0
    assert len(found) > 10
    for each in found:
        assert each.tp in (1, 2)
        assert each.zero in (1, 3)
        try:
            Pricer(request).timeline(each, 0.0)
        except UserError:
            refused += 1
    assert refused <= len(found) // 10
