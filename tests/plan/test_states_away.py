"""Optimizer states in the host's memory: chosen jointly with activations where that is the best, and only where it can be."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from fourfold.config import ModelSection, UserError
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import megatron
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.candidate import Candidate
from fourfold.plan.goals import enough_devices
from fourfold.plan.moves.activations import WAYS, chosen_together, freed_and_seconds, states_per_gigabyte
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.search import Found, search
from fourfold.program.view import rank_views
from tests.plan.dense import DENSE, LAYOUT
from tests.plan.test_bounds import drawn
from tests.plan.test_search import every_layout

LARGE = DENSE | {"num_layers": 6, "hidden_size": 4096, "ffn_size": 16384}
PER_DEVICE = "host_memory_bytes_per_device"


def asked(devices: int, sequences: int, length: int = 2048, link: float | None = None, **more: object) -> Request:
    """A request on a part of a node, with a link of so many bytes a second to the host."""
    cluster = load_cluster(f"dgx-h100:{devices}")
    if link is not None:
        cluster = replace(cluster, device=replace(cluster.device, host_bytes_per_second=link))
    return Request.of(resolve_model(ModelSection(**LARGE | more)), cluster, length, sequences)


def on_cluster(request: Request, **keys: object) -> Request:
    return replace(request, template=replace(request.template, cluster=replace(request.cluster, **keys)))


@cache
def held_at_least() -> int:
    """The least memory that a layout of two devices takes which keeps its optimizer states."""
    fits = replace(asked(2, 8, link=400e9), memory_bytes=10**12, offload=False, offload_optimizer=False)
    return min(each.memory_bytes for each in every_layout(fits))


def best_of_all(request: Request) -> Priced:
    """The layout with the best score of all, simulated with their states on the device and away."""
    both = [every_layout(replace(request, offload_optimizer=away)) for away in (False, True)]
    return min(both[0] + both[1], key=lambda each: each.score)


@pytest.mark.rest
@pytest.mark.parametrize("share", [0.8, 1.02], ids=["nothing fits otherwise", "the rest recomputes"])
def test_the_search_finds_what_simulating_every_layout_finds(share: float) -> None:
    request = replace(asked(2, 8, link=400e9), offload=False)
    request = replace(request, memory_bytes=int(share * held_at_least()))
    best, found = best_of_all(request), search(request).best
    assert best.candidate.offload_optimizer
    assert found[0].candidate.offload_optimizer
    assert found[0].score <= best.score * 1.01
    assert found[0].memory_bytes <= request.memory_bytes
    stays = search(replace(request, offload_optimizer=False)).best
    assert bool(stays) == (share > 1)
    assert all(found[0].score < each.score for each in stays)


@pytest.mark.parametrize("num_layers", [3, pytest.param(5, marks=pytest.mark.rest)])
@pytest.mark.grid(1)
@pytest.mark.parametrize("link", [5e9, 50e9, 400e9], ids=["slow link", "PCIe 5", "near memory"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_states_and_blocks_choose_together_what_simulating_all_choices_finds(
    link: float, share: float, num_layers: int
) -> None:
    """Each block keeps, recomputes in part or in full, and all states stay or leave: 54 layouts of three blocks. The choice is
    within two blocks' recomputation of the best: which blocks make the peak is not known before."""
    request = replace(asked(2, 4, length=16384, link=link, num_layers=num_layers), offload=False)
    layout = replace(LAYOUT, dp_shard=2)
    pricer, everything = Pricer(replace(request, memory_bytes=10**12)), []
    for away, *ways in product((False, True), *(num_layers * (WAYS[:3],))):
        priced = pricer.price(replace(layout, offload_optimizer=away, activations=tuple(ways)))
        assert isinstance(priced, Priced)
        everything.append(priced)
    least, most = min(p.memory_bytes for p in everything), everything[0].memory_bytes
    limit = int(least + share * (most - least))
    fits = [p for p in everything if p.memory_bytes <= limit]
    found = chosen_together(Pricer(replace(request, memory_bytes=limit)), layout)
    assert found is not None
    assert found.memory_bytes <= limit
    near = 2.02 * (max(p.seconds for p in everything[: 3**num_layers]) - everything[0].seconds) / num_layers
    best = min(p.seconds for p in fits)
    assert found.seconds <= best + near
    decided = {p.candidate.offload_optimizer for p in fits if p.seconds <= best + near}
    assert found.candidate.offload_optimizer in decided


def test_what_they_free_and_cost_is_what_the_programs_say() -> None:
    """The peak, which is in the backward, and the simulated step are the reference."""
    request = asked(2, 4, length=16384, link=25e9)
    layout = replace(LAYOUT, dp_shard=2)
    stays, away = (Pricer(request).price(replace(layout, offload_optimizer=each)) for each in (False, True))
    assert isinstance(stays, Priced)
    assert isinstance(away, Priced)
    spec = candidate_spec(request, layout)
    (view,) = rank_views(spec)
    freed, seconds = freed_and_seconds(view, request.prices(spec.layout))
    spared = (stays.memory_bytes - away.memory_bytes) / (1 + request.software.fragmentation)
    assert freed == pytest.approx(spared, rel=0.01)
    assert away.seconds - stays.seconds == pytest.approx(seconds, rel=0.1)
    price = states_per_gigabyte(Pricer(request).predict(layout).simulation)
    assert price == pytest.approx(1e9 * seconds / freed)
    assert states_per_gigabyte(Pricer(request).predict(away.candidate).simulation) is None


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("link", [5e9, 400e9])
def test_no_bound_with_states_away_is_above_the_simulation(devices: int, link: float) -> None:
    request = replace(asked(devices, 32, link=link, num_layers=6), offload_optimizer=True)
    for candidate, seconds, memory_bytes in drawn(request, 40, seed=devices):
        assert candidate.offload_optimizer
        step = Pricer(request).predict(candidate)
        assert seconds <= step.seconds * 1.001, candidate.words()
        assert memory_bytes <= max(step.device_bytes) * 1.001, candidate.words()


def test_the_host_has_to_have_the_memory() -> None:
    """Each device's share of it has to hold the states as they are allocated, in powers of two: a fifth more is enough, half is
    not."""
    request = asked(2, 8, link=400e9)
    request = replace(request, memory_bytes=int(0.7 * held_at_least()))
    spec = candidate_spec(request, search(request).best[0].candidate)
    sizes = [view.flats[unit].shard_numel for view in rank_views(spec) for unit in view.flats]
    needed = 12 * sum(sizes)  # fp32 master weights and two optimizer states
    assert search(on_cluster(request, **{PER_DEVICE: int(1.2 * needed)})).best
    too_little = on_cluster(request, **{PER_DEVICE: int(0.5 * needed)})
    assert search(too_little).best == ()
    forced = search(replace(too_little, offload_optimizer=True))
    assert forced.best == ()


def test_a_layout_that_takes_too_much_of_the_host_says_so() -> None:
    request = on_cluster(asked(2, 4), **{PER_DEVICE: 10**9})
    with pytest.raises(UserError, match=r"needs 9\.\d+ GB of the host's memory .* allowed: 1 GB"):
        Pricer(request).predict(replace(LAYOUT, dp_shard=2, offload_optimizer=True))


@pytest.mark.parametrize("software", ["fourfold", "megatron"])
def test_without_a_link_to_the_host_nothing_leaves(software: str) -> None:
    """A processor has one memory; other software does not copy."""
    request = asked(2, 8, link=400e9)
    limit = int(0.7 * held_at_least())
    cluster = request.cluster
    if software == "fourfold":
        cluster = replace(cluster, device=replace(cluster.device, units=None))
    request = Request.of(request.model, cluster, 2048, 8, software=software)
    assert not request.can_offload
    assert search(replace(request, memory_bytes=limit)).best == ()


def test_fewer_devices_are_enough_with_the_states_away() -> None:
    request = replace(asked(2, 8, num_layers=16), memory_bytes=int(12e9))
    away, stays = (enough_devices(replace(request, offload_optimizer=each)) for each in (None, False))
    assert away is not None
    assert stays is not None
    assert away.devices < stays.devices


def _layouts(found: Found) -> list[Candidate]:
    return [each.candidate for each in filter(None, [*found.best, found.low_memory, found.surely_fits])]


@pytest.mark.parametrize("stated", [True, False])
def test_a_stated_choice_holds_for_all(stated: bool) -> None:
    found = search(replace(asked(4, 16), offload_optimizer=stated))
    assert {each.offload_optimizer for each in _layouts(found)} == {stated}


def test_another_trainer_is_told_that_states_stay_there() -> None:
    layout = replace(LAYOUT, dp_shard=2, zero=1, offload_optimizer=True)
    assert "optimizer states on the host" in layout.words()
    _, missing = megatron(TrainerJob(asked(2, 8), layout))
    assert any("optimizer states" in text for text in missing)
