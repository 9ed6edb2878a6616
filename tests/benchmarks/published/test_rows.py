"""Files of published rows are untrusted: every value is checked, and a mistake gives one message that names it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case import PublishedCase, Skip
from fourfold.config import UserError
from normalise import normalise
from row_files import read_rows

ROWS = Path(__file__).parent / "rows"


def _first(name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((ROWS / f"{name}.json").read_text())[0]
    return row


def _read(tmp_path: Path, *rows: Any) -> Any:
    file = tmp_path / "made.json"
    file.write_text(json.dumps(list(rows)))
    return read_rows([file])[0]


def _message(tmp_path: Path, row: Any) -> str:
    with pytest.raises(UserError) as caught:
        _read(tmp_path, row)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_gives_all_rows_and_says_what_holds_none() -> None:
    rows, unread = read_rows([ROWS, ROWS / "sweep.json"])
    assert len({row.id for row in rows}) == len(rows) == 56, "a file that is named twice is read once"
    assert [file.file for file in unread] == ["tables.json"]


def test_every_row_becomes_a_case_or_says_why_not() -> None:
    for row in read_rows([ROWS])[0]:
        case = normalise(row)
        assert case.reason if isinstance(case, Skip) else case.id == row.id


@pytest.mark.parametrize(
    ("path", "value", "allowed"),
    [
        ("n_gpus", -8, "1 to"),
        ("n_gpus", 2.5, "whole number"),
        ("n_gpus", [8], "null where it is not stated"),
        ("n_gpus", True, "a number"),
        ("seq_len", 10**12, "1 to"),
        ("model.layers", 10**9, "1 to 100000"),
        ("model.glu", 3, "true, false"),
        ("model", [1], "a table"),
        ("measured.step_time_s", float("nan"), "a number"),
        ("measured.step_time_s", float("inf"), "a number"),
        ("measured.step_time_s", -1, "a number"),
        ("parallel.tp", 0, "1 to"),
        ("parallel.zero", 7, "0 to 3"),
        ("notes", {"a": 1}, "a text"),
        ("notes", "x" * 100_000, "a text of at most"),
        ("fields_from_memory", 3, "a list"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, path: str, value: Any, allowed: str) -> None:
    row = _first("sweep")
    *tables, key = path.split(".")
    target = row
    for name in tables:
        target = target[name]
    target[key] = value
    message = _message(tmp_path, row)
    assert f"made.json: row sweep:0: {path} = " in message
    assert allowed in message
    assert len(message) < 400


def test_a_number_in_words_is_not_stated_and_the_case_says_so(tmp_path: Path) -> None:
    row = _first("sweep")
    row["parallel"]["vpp"] = "NA"
    row["model"]["tied"] = "unknown"
    case = normalise(_read(tmp_path, row)[0])
    assert not isinstance(case, Skip)
    assert any("parallel.vpp" in text for text in case.defaults)
    assert any("model.tied" in text for text in case.defaults)


@pytest.mark.parametrize("content", ["", "{", "3", '"rows"', "[3]", "[[]]", "[" * 200_000, "\x00"])
def test_what_is_no_list_of_rows_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(UserError) as caught:
        read_rows([file])
    assert "bad.json" in str(caught.value)


def test_files_that_are_not_there_or_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_rows([tmp_path / "none.json"])
    with pytest.raises(UserError, match="no file is given"):
        read_rows([])
    with pytest.raises(UserError, match=r"no \*\.json"):
        read_rows([tmp_path])
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(65_000_000)
    with pytest.raises(UserError, match="at most 64000000"):
        read_rows([tmp_path])


def test_the_second_schema_has_no_ids_and_is_counted_by_position() -> None:
    rows = read_rows([ROWS / "flags.json"])[0]
    assert [row.id for row in rows] == [f"flags:{i}" for i in range(len(rows))]
    assert all(row.regression for row in rows)
    assert rows[0].figures.last_rank_alone
    assert rows[0].num_devices == 8


@pytest.mark.parametrize(
    ("flags", "values", "attention"),
    [
        ({}, "lts_dgx_a100.json", None),
        ({"attention-backend": "unfused"}, "dev_dgx_h100.json", "unfused"),
        ({"transformer-impl": "local"}, "dev_dgx_h100.json", "unfused"),
        ({}, "lts_dgxa100_cluster.json", "unfused"),
        ({"attention-backend": "flash"}, "lts_dgxa100_cluster.json", None),
    ],
)
def test_modules_and_images_without_a_fused_kernel_write_the_scores(
    tmp_path: Path, flags: dict[str, str], values: str, attention: str | None
) -> None:
    row = _first("flags")
    row = {**row, "source": f"a trainer's golden_values_{values}", "args": {**row["args"], **flags}}
    assert _read(tmp_path, row)[0].attention == attention


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["sweep", "vendor", "papers", "flags"]),
    data=st.data(),
)
def test_any_change_to_a_row_gives_a_case_a_reason_or_one_message(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = json.loads((ROWS / f"{name}.json").read_text())
    row = data.draw(st.sampled_from(rows))
    tables = [row, *(value for value in row.values() if isinstance(value, dict))]
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(tables))
        if table:
            table[data.draw(st.sampled_from(sorted(table)))] = data.draw(_VALUES)
    file = tmp_path_factory.mktemp("rows") / "changed.json"
    file.write_text(json.dumps([row]))
    message, read = None, []
    try:
        read = read_rows([file])[0]
    except UserError as error:
        message = str(error)
    if message is not None:
        assert message.startswith("changed.json: row ")
        return
    case = normalise(read[0])
    if not isinstance(case, Skip):
        assert case.layout.pp * case.layout.cp * case.layout.tp * case.layout.dp == case.num_devices
        per_step = case.layout.microbatch_sequences * case.layout.num_microbatches * case.layout.dp
        assert per_step == case.global_sequences


def test_words_that_a_row_has_under_keys_of_their_own_are_read_with_its_notes(tmp_path: Path) -> None:
    row = _first("torchtitan")
    for more, offloaded, eager in (
        ({}, None, False),
        ({"offload": "optimizer states"}, "optimizer", False),
        ({"offload": "activation checkpoints on the host"}, "activations", False),
        ({"offload": "none"}, None, False),
        ({"compile": False}, None, True),
        ({"compile": True}, None, False),
    ):
        (tmp_path / "one.json").write_text(json.dumps([{**row, **more}]))
        case = normalise(read_rows([tmp_path / "one.json"])[0][0])
        assert isinstance(case, PublishedCase)
        assert (case.offloaded, case.eager) == (offloaded, eager), more
    (tmp_path / "one.json").write_text(json.dumps([{**row, "source": "a page", "notes": "", "framework": "nanotron"}]))
    assert normalise(read_rows([tmp_path / "one.json"])[0][0]).software.startswith("nanotron")  # type: ignore[union-attr]


def test_mfu_is_read_as_percents_or_as_a_share_and_tokens_of_all_devices_under_both_names(tmp_path: Path) -> None:
    measured = [{"mfu_pct": 41.0}, {"mfu": 0.41}, {"mfu": 41}, {"tokens_per_s_total": 1000}, {"tokens_per_s": 1000}]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"measured": each} for each in measured]))
    rows, _ = read_rows([file])
    assert [row.figures.mfu for row in rows[:3]] == pytest.approx([0.41] * 3)
    assert [row.figures.tokens_per_second for row in rows[3:]] == [1000, 1000]
