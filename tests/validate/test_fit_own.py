"""`fourfold fit` of fourfold's own runs: after `calibrate` and on clusters that ship; what was fitted stays its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from fourfold import plan, simulate
from fourfold.config import RunConfig, UserError, parse_run
from fourfold.cost.fitted import Fitted, fitted, read_software, write_software
from fourfold.cost.software import OWN_SOFTWARE
from fourfold.validate import Case, MeasuredStep, predict_case
from fourfold.validate.case_file import run_case
from fourfold.validate.fit import fit_software, with_constants
from tests.calibrate.machine_table import cluster

SLOWER = {"gemm_speed": 0.8, "link_speed": 0.7}
LAYOUTS = ({"dp_shard": 4}, {"tp": 4}, {"pp": 2, "dp_shard": 2}, {"zero": 3, "dp_shard": 4})


def runs_on(machine: str, hidden_size: int = 256) -> list[RunConfig]:
    model = {"preset": "tiny", "vocab_size": 4096, "hidden_size": hidden_size, "ffn_size": 4 * hidden_size}
    fixed = {"model": model, "batch": {"global_sequences": 16, "sequence_length": 128}, "cluster": {"preset": machine}}
    return [parse_run({**fixed, "layout": layout}) for layout in LAYOUTS]


def measured_by(case: Case, constants: Fitted) -> Case:
    seconds = predict_case(case, constants).step_seconds
    return replace(case, measured=MeasuredStep(step_seconds=seconds))


@pytest.mark.parametrize(("machine", "hidden_size"), [("calibrated", 256), ("dgx-h100:4", 8192)])
def test_own_runs_are_fitted_and_the_fit_is_what_simulate_then_takes(
    machine: str, hidden_size: int, tmp_path: Path
) -> None:
    if machine == "calibrated":
        machine = str(tmp_path / "this-machine.toml")
        Path(machine).write_text(tomli_w.dumps(cluster()), encoding="utf-8")
    configs = runs_on(machine, hidden_size)
    true = with_constants(fitted(), OWN_SOFTWARE, SLOWER)
    rows = [{"step": step, "step_seconds": 1.0} for step in range(3)]
    cases = [measured_by(run_case(f"runs/{index}", run, rows), true) for index, run in enumerate(configs)]
    found = fit_software(cases[:3])
    assert found.base == OWN_SOFTWARE
    assert found.helps
    write_software(tmp_path / "mine.toml", found.base, found.constants, "a test")
    shipped, better, wanted = (
        simulate(configs[3]).step_seconds,
        simulate(configs[3], software=str(tmp_path / "mine.toml")).step_seconds,
        cases[3].measured_seconds,
    )
    assert wanted is not None
    assert abs(better / wanted - 1) < 0.6 * abs(shipped / wanted - 1)


def test_a_profile_fitted_to_own_runs_is_searched_as_fourfold_itself(tmp_path: Path) -> None:
    """Offload, overlap and choices by block are fourfold's own: a file of its constants takes none of them away."""
    write_software(tmp_path / "mine.toml", OWN_SOFTWARE, {}, "as it ships")
    assert read_software(tmp_path / "mine.toml").is_own
    asked = {"model": "llama3-8b", "cluster": "dgx-h100:8", "batch_tokens": 2**17, "sequence_length": 4096}
    own = plan(**asked)
    mine = plan(**asked, software=str(tmp_path / "mine.toml"))
    assert [each.candidate for each in mine.layouts] == [each.candidate for each in own.layouts]
    assert [each.score for each in mine.layouts] == [each.score for each in own.layouts]


def test_own_runs_and_others_are_two_softwares() -> None:
    (run, *_) = runs_on("dgx-h100:4")
    rows = [{"step": step, "step_seconds": 1.0} for step in range(3)]
    own = run_case("runs/a", run, rows)
    other = replace(own, software=own.software.model_copy(update={"name": "megatron-2025"}))
    with pytest.raises(UserError, match="one software at a time"):
        fit_software([own, other])
