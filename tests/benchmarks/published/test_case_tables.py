"""Published cases as files: every setting in a key of its own, read back unchanged, and predicted by `fourfold validate` alike."""

from dataclasses import replace
from pathlib import Path

import pytest

from as_case import as_case
from case import PublishedCase
from case_tables import case_file_text, case_table
from fourfold.config import UserError
from fourfold.config.kernel_choice import KernelChoice
from fourfold.cost.fitted import fitted
from fourfold.hardware import load_device
from fourfold.validate import Case, checked_prediction, predict_case, read_cases
from normalise import write_cases
from row_files import read_rows
from settle import settle
from tests.support.published import CASES, ROWS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def read_back(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The tests' rows, written as cases and read by the installed reader."""
    folder = tmp_path_factory.mktemp("cases")
    write_cases(list(ROWS.values()), folder)
    return {case.name: case for file in sorted(folder.glob("*.toml")) for case in read_cases(file)}


def test_every_case_is_written_and_the_others_are_named(tmp_path: Path) -> None:
    left_out = write_cases(list(ROWS.values()), tmp_path)
    files = {path.stem for path in tmp_path.iterdir()}
    assert files == {case.file for case in CASES.values()}
    assert len(left_out) == len(ROWS) - len(CASES)
    assert any(text.startswith("papers:7: the layout is not stated") for text in left_out)


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_read_back_as_it_was(name: str, read_back: dict[str, Case]) -> None:
    case, again = as_case(CASES[name]), read_back[name]
    for key in (
        "source",
        "model",
        "software",
        "measured",
        "num_devices",
        "transport",
        "gemm_dtype",
        "measured_seconds",
    ):
        assert getattr(case, key) == getattr(again, key), key
    for key in ("layout", "batch", "precision"):
        assert getattr(case.run, key) == getattr(again.run, key), key
    assert case.attention_share == (1.0 if again.attention_share is None else again.attention_share)


@pytest.mark.parametrize("name", CASES)
def test_the_installed_command_predicts_it_alike(name: str, read_back: dict[str, Case]) -> None:
    assert checked_prediction(read_back[name]) == checked_prediction(as_case(CASES[name]))


def test_what_is_settled_is_predicted_as_the_case_that_it_became() -> None:
    settled, found = settle(CASES["sweep:0"], fitted())
    again = predict_case(as_case(settled))
    assert (found.step_seconds, found.memory_bytes) == (again.step_seconds, again.memory_bytes)


@pytest.mark.parametrize("file", ["sweep", "torchtitan"])
def test_the_cases_that_a_person_reviewed_are_current(file: str, tmp_path: Path) -> None:
    """After a change of the reader: python benchmarks/published/normalise.py ROWS --out tests/benchmarks/published/cases"""
    write_cases(read_rows([HERE / "rows" / f"{file}.json"])[0], tmp_path)
    assert (tmp_path / f"{file}.toml").read_text() == (HERE / "cases" / f"{file}.toml").read_text()


def test_no_setting_is_hidden_in_notes() -> None:
    """Cases of rows whose notes alone differ differ in a key."""
    case = CASES["sweep:0"]
    plain = case_table(case)
    for change in (
        {"eager": True},
        {"kernels": KernelChoice(launches="graph")},
        {"kernels": KernelChoice(loss="chunked")},
        {"offloaded": "optimizer"},
    ):
        table = case_table(replace(case, **change))  # type: ignore[arg-type]
        assert table["software"] != plain["software"], change
    assert case_table(replace(case, attention_share=0.5))["attention_share"] == 0.5
    assert "left_open" not in plain["about"] or "recompute" in plain["about"]["left_open"]


def test_what_all_cases_share_stands_once() -> None:
    tables = [case_table(case) for case in CASES.values() if case.file == "sweep"]
    text = case_file_text(tables)
    assert text.count("source = ") - text.count("{ name") <= len(tables)
    assert text.index("precision = ") < text.index("[[case]]")
    assert text.count("precision = ") == 1


def on_torus(domain: int) -> PublishedCase:
    """A case on 16 chips of a pod, so many of which share a torus."""
    case = CASES["sweep:1"]
    network = replace(case.network, devices_per_node=4, nvlink_domain=domain)
    return replace(case, device="tpu-v5p", hardware=load_device("tpu-v5p"), network=network)


def test_chips_of_a_pod_are_predicted_alike_on_the_full_torus(tmp_path: Path) -> None:
    case = on_torus(8960)
    (tmp_path / "torus.toml").write_text(case_file_text([case_table(case)]))
    [again] = read_cases(tmp_path / "torus.toml")
    assert (as_case(case).cluster.levels[0].devices, again.cluster.levels[0].devices) == (16, 8960)
    assert predict_case(again) == predict_case(as_case(case))


def test_a_part_of_a_torus_beside_a_network_cannot_be_stated() -> None:
    with pytest.raises(UserError, match="torus"):
        case_table(on_torus(8))
