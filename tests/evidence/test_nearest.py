"""The nearest published runs: a run is nearest to itself, every key tells runs apart, the table states all that it is asked for."""

from dataclasses import replace

import pytest

from fourfold.evidence.nearest import DOUBLING, OTHER, RunShape, nearest_runs, published_runs
from fourfold.hardware import device_names
from tests.support.programs import make_spec
from tests.support.simulated import real_prices

RUNS = published_runs()


def test_a_run_is_nearest_to_itself() -> None:
    for run in RUNS[:: max(1, len(RUNS) // 40)]:
        assert run.shape.distance(run.shape) == 0
        assert min(run.shape.distance(other.shape) for other in RUNS) == 0


@pytest.mark.parametrize("key", [*DOUBLING, *OTHER])
def test_every_key_tells_runs_from_each_other(key: str) -> None:
    one = RUNS[0].shape
    value = getattr(one, key)
    other = replace(one, **{key: f"{value}x" if isinstance(value, str) else 2 * value + (value == 0)})
    expected = DOUBLING.get(key, OTHER.get(key))
    assert one.distance(other) == pytest.approx(expected)
    assert other.distance(one) == pytest.approx(expected)


def test_rows_of_the_table_are_runs_that_could_be() -> None:
    assert len({run.id for run in RUNS}) == len(RUNS) > 500
    devices = set(device_names())
    for run in RUNS:
        shape = run.shape
        assert shape.device in devices
        assert run.step_seconds > 0 < run.predicted_step_seconds
        assert (run.memory_bytes is None) == (run.predicted_memory_bytes is None)
        assert shape.active_parameters <= shape.parameters
        assert shape.devices % (shape.pp * shape.cp * shape.tp) == 0
        assert run.source


def test_the_nearest_come_first() -> None:
    spec = make_spec()
    shape = RunShape.of(spec, real_prices(spec))
    found = nearest_runs(spec, real_prices(spec), 5)
    distances = [shape.distance(run.shape) for run in found]
    assert distances == sorted(shape.distance(run.shape) for run in RUNS)[:5]
