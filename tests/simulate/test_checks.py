"""The price of the checks for silent corruption is what the step takes longer with them, and small at the usual interval."""

from dataclasses import replace

import pytest

from fourfold.config.schema import FaultsSection, MetricsSection
from fourfold.simulate.checks import CheckPrice, check_prices
from fourfold.simulate.prediction import predict_step
from tests.simulate.test_what_is_priced import PRICES as DEFAULT
from tests.simulate.test_what_is_priced import SPEC

PRICES = replace(DEFAULT, software=replace(DEFAULT.software, name="fourfold"))
USUAL = FaultsSection()


def prices(faults: FaultsSection, microbatches: int = 4) -> dict[str, CheckPrice]:
    spec = SPEC.with_microbatches(microbatches)
    found = check_prices(predict_step(spec, PRICES), spec, faults)
    return {price.name: price for price in found}


@pytest.mark.parametrize("microbatches", [4, 40])
def test_a_check_costs_what_the_step_takes_longer_with_it(microbatches: int) -> None:
    spec = SPEC.with_microbatches(microbatches)
    plain = predict_step(spec, PRICES).seconds
    found = prices(replace_faults(checksum_every_steps=7, replay_every_steps=30), microbatches)
    for name, checked, every in (
        ("replica checksums", replace(spec, checksum=True), 7),
        ("replay", replace(spec, replay=True), 30),
    ):
        longer = predict_step(checked, PRICES).seconds - plain
        assert found[name].seconds == pytest.approx(longer, rel=0.02)
        assert found[name].share == pytest.approx(longer / plain / every, rel=0.02)


def test_at_the_usual_interval_all_of_them_cost_less_than_two_per_cent() -> None:
    found = prices(USUAL)
    assert set(found) == {"replica checksums", "norms of a rank's own gradients"}
    assert sum(price.share for price in found.values()) < 0.02


def test_what_a_run_does_not_do_costs_nothing() -> None:
    assert prices(replace_faults(checksum_every_steps=0, locate_nan=False)) == {}


def test_a_copy_to_memory_costs_its_bytes_and_what_is_left_of_sending_them() -> None:
    step = predict_step(SPEC, PRICES)
    found = {
        every: next(p for p in check_prices(step, SPEC, USUAL, every) if p.name == "copies to memory")
        for every in (1, 10)
    }
    size = SPEC.checkpoint_bytes / SPEC.layout.world_size
    assert found[10].seconds >= size / PRICES.cluster.device.host_link_bytes_per_second
    assert found[1].seconds >= found[10].seconds
    assert found[10].share == pytest.approx(found[10].seconds / 10 / step.seconds)
    assert "copies to memory" not in {price.name for price in check_prices(step, SPEC, USUAL)}


def test_other_software_makes_no_checks() -> None:
    other = replace(PRICES, software=replace(PRICES.software, name="megatron"))
    assert check_prices(predict_step(SPEC, other), SPEC, USUAL) == []


def replace_faults(**values: int | bool) -> FaultsSection:
    return USUAL.model_copy(update=values)


def test_a_sampled_step_is_priced_as_its_share_of_the_time() -> None:
    """By the sampled program itself; attention's scores are most of it."""
    step = predict_step(SPEC, PRICES)

    def price(*of: str, every: int = 100) -> CheckPrice:
        found = check_prices(step, SPEC, USUAL, metrics=MetricsSection(every_steps=every, of=list(of)))
        return next(each for each in found if each.name == "numbers of every layer")

    full, scores = price("gradients", "weights", "activations", "attention"), price("attention")
    assert 0 < scores.seconds < full.seconds
    assert full.share == pytest.approx(full.seconds / 100 / step.seconds)
    assert price("attention", every=10).share == pytest.approx(10 * scores.share)
    assert "numbers of every layer" not in {each.name for each in check_prices(step, SPEC, USUAL)}
