"""Numbers in halves are exact; states are rounded without bias, by bits that depend on the element and the update alone."""

from itertools import product

import numpy as np
import pytest
import torch

from fourfold.config.optimizers import OptimizerSection
from fourfold.layout import FlatLayout, LocalParameter
from fourfold.model import halves
from fourfold.model.spec import ParameterSpec
from fourfold.runtime.initialize import global_runs
from fourfold.runtime.narrow import Elements, NarrowShard, Rounded
from fourfold.runtime.optimizer import ShardOptimizer, clip_on_device

CPU = torch.device("cpu")
STRIDE = 2654435761


def _all_patterns() -> torch.Tensor:
    """fp32 numbers of every upper half but infinities and NaNs, with lower halves at and around the ends and the middle."""
    upper = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    lower = torch.tensor([0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF], dtype=torch.int32)
    numbers = (upper[:, None] << 16 | lower).reshape(-1).view(torch.float32)
    return numbers[numbers.abs() < 3e38]


def test_halves_make_up_every_number() -> None:
    numbers = _all_patterns()
    weights, remainders = (
        torch.empty(numbers.numel(), dtype=torch.bfloat16),
        torch.empty(numbers.numel()).to(torch.int16),
    )
    halves.split_halves(numbers, weights, remainders)
    assert torch.equal(halves.join_halves(weights, remainders).view(torch.int32), numbers.view(torch.int32))


def test_the_upper_half_is_the_nearest_bf16() -> None:
    numbers = _all_patterns()
    weights, remainders = (
        torch.empty(numbers.numel(), dtype=torch.bfloat16),
        torch.empty(numbers.numel()).to(torch.int16),
    )
    halves.split_halves(numbers, weights, remainders)
    tie = (numbers.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(weights[~tie], numbers[~tie].bfloat16())
    assert (weights[tie].double().abs() > numbers[tie].double().abs()).all()
    assert torch.equal(
        (weights.double() - numbers.double()).abs(), (numbers.bfloat16().double() - numbers.double()).abs()
    )


def _elements(numel: int) -> Elements:
    return Elements(LocalParameter(ParameterSpec("w", (numel,), 1.0, False, None)), 0, numel, {})


def test_rounding_has_no_bias_and_reaches_both_neighbours() -> None:
    """Over many updates the mean of what is kept is the number: within five deviations of a mean of as many draws."""
    values = torch.tensor([1.0 + 2**-12, -3.0 - 2**-9, 1e-9, -7.77e-20, 0.3, 1.0 + 2**-8 * 0.99])
    stored = Rounded(torch.empty(len(values), dtype=torch.bfloat16), _elements(len(values)), "exp_avg", torch.float32)
    updates, kept = 4000, []
    for update in range(updates):
        stored.store(values.clone(), update)
        kept.append(stored.tensor.double().clone())
    found = torch.stack(kept)
    low, high = found.min(0).values, found.max(0).values
    assert ((low < values) & (values < high)).all()
    assert all(len(found[:, i].unique()) == 2 for i in range(len(values)))
    deviation = (high - low) / 2 / updates**0.5
    assert ((found.mean(0) - values.double()).abs() < 5 * deviation).all()


def test_numbers_of_16_bits_stay_as_they_are() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    stored = Rounded(torch.empty_like(values), _elements(1000), "exp_avg", torch.float32)
    for update in range(50):
        stored.store(values.float(), update)
        assert torch.equal(stored.tensor, values)


def test_an_average_of_small_shares_does_not_stand_still() -> None:
    """beta2 = 0.999: to the nearest, bf16 stays where it is; here it comes to the value that it averages."""
    rounded, nearest = torch.ones(512, dtype=torch.bfloat16), torch.ones(512, dtype=torch.bfloat16)
    stored = Rounded(rounded, _elements(512), "exp_avg_sq", torch.float32)
    exact = 1.0
    for update in range(2000):
        stored.store(stored.load() * 0.999 + 0.001 * 0.25, update)
        nearest = (nearest.float() * 0.999 + 0.001 * 0.25).bfloat16()
        exact = exact * 0.999 + 0.001 * 0.25
    assert nearest.float().mean() == 1.0
    assert rounded.float().mean().item() == pytest.approx(exact, rel=0.01)


def test_roles_updates_and_parameters_have_bits_of_their_own() -> None:
    kept = set()
    for name, role, update in product(("a", "b"), ("exp_avg", "exp_avg_sq"), (0, 1)):
        local = LocalParameter(ParameterSpec(name, (256,), 1.0, False, None))
        stored = Rounded(torch.empty(256, dtype=torch.bfloat16), Elements(local, 0, 256, {}), role, torch.float32)
        stored.store(torch.full((256,), 1.0 + 2**-9), update)
        kept.add(stored.tensor.float().numpy().tobytes())
    assert len(kept) == 8


SPLITS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, str, int], ...]]] = {
    "full": ((6, 10), ()),
    "rows": ((6, 10), ((0, "tp", 2),)),
    "columns": ((6, 10), ((1, "tp", 2),)),
    "a padded vocabulary": ((257, 4), ((0, "tp", 2),)),
    "experts": ((4, 6, 10), ((0, "ep", 2),)),
    "rows of experts": ((4, 6, 10), ((0, "ep", 2), (1, "etp", 3))),
    "columns of experts": ((4, 6, 10), ((0, "ep", 2), (2, "etp", 5))),
}


@pytest.mark.parametrize("case", SPLITS)
def test_places_are_those_of_the_full_parameter(case: str) -> None:
    """Whatever part of it a rank holds, and whatever range of that a shard or a chunk has."""
    shape, splits = SPLITS[case]
    local = LocalParameter(ParameterSpec("w", shape, 1.0, False, 0), splits)
    degrees = {axis: degree for _, axis, degree in splits}
    for place in product(*map(range, degrees.values())):
        coordinates = dict(zip(degrees, place, strict=True))
        for start, end in ((0, local.numel), (3, local.numel - 1), (7, 19), (11, 12)):
            found = Elements(local, start, end, coordinates).places(CPU, 12345).numpy().view(np.uint32)
            for first, last, low, high in global_runs(local, coordinates, start, end):
                wanted = (np.arange(first, last) * STRIDE + 12345) % (1 << 32)
                assert np.array_equal(found[low:high], wanted.astype(np.uint32)), (coordinates, start, end)


def test_places_of_large_parameters_wrap_and_do_not_overflow() -> None:
    local = LocalParameter(ParameterSpec("w", (1 << 17, 1 << 16), 1.0, False, None))
    start = (1 << 33) - 5
    found = Elements(local, start, start + 5, {}).places(CPU, 4_000_000_000).numpy().view(np.uint32)
    assert found.tolist() == [(number * STRIDE + 4_000_000_000) % (1 << 32) for number in range(start, start + 5)]


@pytest.mark.parametrize("chunk", [3, 8, 1000])
def test_pieces_cover_a_shards_parameters_once(chunk: int) -> None:
    parameters = tuple(
        LocalParameter(ParameterSpec(n, (s,), 1.0, False, None)) for n, s in (("a", 10), ("b", 7), ("c", 1))
    )
    flat = FlatLayout("u", "dense", parameters, 0, 32, 2, 1, ("dp_shard",), ("dp_shard",))
    seen = []
    for index in range(2):
        shard = NarrowShard(flat, index, {}, torch.float32, chunk)
        for first, last, elements in shard.pieces(0, 16):
            assert 0 < last - first == elements.end - elements.start <= chunk
            seen += [(elements.parameter.name, n) for n in range(elements.start, elements.end)]
    assert seen == [(p.name, n) for p in parameters for n in range(p.numel)]


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd"])
def test_updates_of_halves_are_those_of_full_numbers(name: str) -> None:
    """To the bit, over 30 updates with the same gradients, in chunks of a vector."""
    parameters = tuple(LocalParameter(ParameterSpec(n, (s,), 1.0, False, None)) for n, s in (("a", 48), ("b", 16)))
    flat = FlatLayout("u", "dense", parameters, 0, 64, 1, 0, (), ())
    section, draw = OptimizerSection.model_validate({"name": name, "lr": 0.01}), torch.Generator().manual_seed(3)
    master = torch.randn(64, generator=draw)
    weights, remainders = torch.empty(64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.int16)
    halves.split_halves(master, weights, remainders)
    runs = [(0, 48, True, 1.0), (48, 64, False, 0.5)]
    full = ShardOptimizer(section, master, runs)
    split = ShardOptimizer(section, remainders, runs, 0, NarrowShard(flat, 0, {}, torch.float32, 16, weights))
    for update in range(30):
        gradient = torch.randn(64, generator=draw)
        full.update(gradient.clone(), 0.01, update, 0.7)
        split.update(gradient.clone(), 0.01, update, 0.7)
        assert torch.equal(halves.join_halves(weights, remainders), master)
        assert all(torch.equal(split.state[role], full.state[role]) for role in full.state)


@pytest.mark.parametrize("name", ["adamw", "lion", "sgd", "muon"])
def test_a_step_that_is_skipped_on_a_device_leaves_every_bit(name: str) -> None:
    parameters = (LocalParameter(ParameterSpec("a", (64,), 1.0, False, None)),)
    flat = FlatLayout("u", "dense", parameters, 0, 64, 1, 0, (), ())
    section = OptimizerSection.model_validate({"name": name, "lr": 0.01, "state_dtype": "bf16"})
    weights, remainders = torch.empty(64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.int16)
    halves.split_halves(torch.randn(64, generator=torch.Generator().manual_seed(3)), weights, remainders)
    optimizer = ShardOptimizer(
        section, remainders, [(0, 64, True, 1.0)], 0, NarrowShard(flat, 0, {}, torch.float32, 9, weights)
    )
    optimizer.update(torch.full((64,), 0.1), 0.01, 0, 1.0)
    before = [each.clone() for each in (weights, remainders, *optimizer.state.values())]
    bad = torch.full((64,), float("nan"))
    optimizer.update(bad, 0.01, 1, clip_on_device(torch.tensor(float("inf"), dtype=torch.float64), 1.0, 2.0))
    after = (weights, remainders, *optimizer.state.values())
    assert all(
        torch.equal(one.view(torch.int16), other.view(torch.int16)) for one, other in zip(before, after, strict=True)
    )
