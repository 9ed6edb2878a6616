"""`fourfold fit`: few runs move a profile's constants as far as they tell, and the next run is predicted better."""

from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.config import UserError
from fourfold.cost.fitted import fitted, read_software, write_software
from fourfold.cost.most_probable import Free, probable_scatter
from fourfold.report.format_validation import fit_lines
from fourfold.validate import Case, MeasuredStep, predict_case, read_cases
from fourfold.validate.fit import FREE, fit_software

EXAMPLE = Path(__file__).parents[2] / "examples" / "cases.toml"
SLOWER = {"gemm_speed": 0.9, "link_speed": 0.75, "extra": 0.2}


@pytest.fixture(scope="module")
def runs() -> list[Case]:
    """Layouts as a software would measure them whose matmuls and links are slower, and which holds more memory."""
    cases = read_cases(EXAMPLE)
    base, known = cases[0].software.name, fitted()
    entry = known.entry(base)
    changed = {name: entry[name] * by if name != "extra" else by for name, by in SLOWER.items()}
    slower = replace(known, profiles={**known.profiles, base: {**entry, **changed}})
    found = []
    for case in cases:
        seen = predict_case(case, slower)
        measured = MeasuredStep(step_seconds=seen.step_seconds, peak_memory_bytes=seen.memory_bytes)
        found.append(replace(case, measured=measured))
    return found


def _errors(case: Case, constants: dict[str, float]) -> tuple[float, float]:
    known, base = fitted(), case.software.name
    profiles = {**known.profiles, base: {**known.entry(base), **constants}}
    seen = predict_case(case, replace(known, profiles=profiles))
    assert seen.step_seconds
    assert seen.memory_bytes
    assert case.measured_seconds
    assert case.measured.peak_memory_bytes
    return abs(seen.step_seconds / case.measured_seconds - 1), abs(
        seen.memory_bytes / case.measured.peak_memory_bytes - 1
    )


@pytest.mark.parametrize("number", [3, *(pytest.param(n, marks=pytest.mark.rest) for n in (1, 5))])
def test_the_next_run_is_predicted_better(runs: list[Case], number: int) -> None:
    """A run that the fit has not seen: the more the better."""
    known, unseen = runs[:number], runs[-1]
    found = fit_software(known)
    before, after = _errors(unseen, {}), _errors(unseen, dict(found.constants))
    limit = {1: 0.7, 3: 0.5, 5: 0.35}[number]
    assert after[0] < limit * before[0]
    assert after[1] < limit * before[1]
    assert len(found.left_out) == len(found.after) == 2 * number


def test_no_constant_goes_farther_than_runs_tell(runs: list[Case]) -> None:
    """A run that is as predicted moves nothing; one that took ten times as long does not move a constant beyond its limits."""
    seen = predict_case(runs[0])
    same = replace(runs[0], measured=MeasuredStep(step_seconds=seen.step_seconds))
    assert fit_software([same]).constants == {}
    assert seen.step_seconds is not None
    found = fit_software([replace(runs[0], measured=MeasuredStep(step_seconds=10 * seen.step_seconds))])
    for free in (each for constants in FREE.values() for each in constants):
        assert free.least <= found.constants.get(free.name, free.least) <= free.most


def test_a_constant_that_is_0_stays_so(runs: list[Case]) -> None:
    """Programs that XLA compiles have no host time a kernel: nothing is a factor of 0."""
    known = fitted()
    (name,) = {case.software.name for case in runs}
    none = replace(known, profiles={**known.profiles, name: {**known.entry(name), "host_launch_seconds": 0.0}})
    found = fit_software(runs[:2], known=none)
    assert "host_launch_seconds" not in found.constants
    assert found.constants


@pytest.mark.rest
def test_left_out_errors_are_those_of_a_fit_without_the_run(runs: list[Case]) -> None:
    """The linear model's, beside the fit itself."""
    found = fit_software(runs[:4])
    others = fit_software(runs[1:4])
    step = next(each.error for each in found.left_out if each.case == 0 and each.figure == "step")
    assert abs(step) == pytest.approx(_errors(runs[0], dict(others.constants))[0], abs=0.01)


def test_cases_of_one_software_with_figures(runs: list[Case]) -> None:
    other = replace(runs[1], software=runs[1].software.model_copy(update={"name": "torchtitan-2025"}))
    with pytest.raises(UserError, match="one software at a time"):
        fit_software([runs[0], other])
    with pytest.raises(UserError, match="no case has a measured"):
        fit_software([replace(runs[0], measured=MeasuredStep(out_of_memory=True))])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "megatrom-2023"', "did you mean 'megatron'?"),
        ('base = "megatron-2023"\n[constants]\ngem_speed = 1.0', "did you mean 'gemm_speed'?"),
        ('base = "megatron-2023"\n[constants]\ngemm_speed = "fast"', "a value that works"),
        ('base = "megatron-2023"\n[constants]\ngemm_speed = nan', "a value that works"),
        ("base = [", "what works"),
        ("constants = 3", "no such software"),
    ],
)
def test_a_file_that_is_wrong_has_one_message(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_software(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_software(path, "megatron-2023", {"fused": 0.5}, "by hand")
    assert read_software(path).fused == 0.5
    with pytest.raises(UserError, match="exists already"):
        write_software(path, "megatron-2023", {}, "")
    with pytest.raises(UserError, match="mine-not-there"):
        read_software(tmp_path / "mine-not-there.toml")


def test_runs_that_do_not_agree_move_little(runs: list[Case]) -> None:
    """A fault that every run has is the software's; faults of both signs are scatter, which no constant explains."""

    def fitted_to(*factors: float) -> float:
        cases = [
            replace(run, measured=MeasuredStep(step_seconds=factor * _seconds(run)))
            for run, factor in zip(runs, factors, strict=False)
        ]
        found = fit_software(cases)
        (speed,) = {found.constants.get("gemm_speed", found.prior["gemm_speed"])}
        return abs(speed / found.prior["gemm_speed"] - 1)

    assert fitted_to(1.2, 0.9, 1.2) < 0.5 * fitted_to(1.1, 1.1, 1.1)


def _seconds(case: Case) -> float:
    seconds = predict_case(case).step_seconds
    assert seconds is not None
    return seconds


def test_constants_stay_where_runs_do_not_predict_each_other_better(runs: list[Case], tmp_path: Path) -> None:
    """Slower and faster runs of one layout: what two tell, the third denies. The memory, of which all tell alike, is fitted."""
    scattered = [
        replace(runs[0], measured=MeasuredStep(step_seconds=factor * _seconds(runs[0]), peak_memory_bytes=held))
        for factor in (0.75, 1.3, 0.97)
        for held in [runs[0].measured.peak_memory_bytes]
    ]
    found = fit_software(scattered)
    assert found.stays == ("step",)
    assert found.helps
    assert set(found.constants) <= {"extra", "saved_share", "context_bytes"}
    assert found.constants
    assert [each.error for each in found.after if each.figure == "step"] == [
        each.error for each in found.before if each.figure == "step"
    ]
    times = [replace(each, measured=MeasuredStep(step_seconds=each.measured.step_seconds)) for each in scattered]
    alone = fit_software(times)
    assert not alone.helps
    assert alone.constants == {}
    text = "\n".join(fit_lines(alone, times, tmp_path / "mine.toml"))
    assert "its constants stay: the runs predict each other no better" in text
    assert "mine.toml is not written" in text


def test_the_scatter_is_what_errors_have_that_no_constant_explains() -> None:
    """Many errors give it; one moves it part of the way from the usual one; what a constant explains is none."""
    free, usual = [Free("gemm_speed", 0.12, 0.2, 1.6)], 0.05
    unexplained = [0.2 * (-1) ** index for index in range(100)]
    assert probable_scatter(free, unexplained, [[0.0]] * 100, usual) == pytest.approx(0.2, rel=0.01)
    assert usual < probable_scatter(free, [0.2], [[0.0]], usual) < 0.15
    assert probable_scatter(free, [0.12] * 100, [[1.0]] * 100, usual) == usual / 4
