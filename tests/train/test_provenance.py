"""Where a state comes from: its checkpoint says it, and no step is computed by other code unseen."""

import json
import os
import shutil
from pathlib import Path

import pytest

import fourfold
from fourfold.checkpoint import read_manifest
from fourfold.checkpoint.manifest import Manifest
from fourfold.config import FinalFailure, UserError, dump_run, load_run, num_steps
from fourfold.config.own_code import OwnCode, code_in, own_code, source_digest
from fourfold.data.prepared import open_prepared
from fourfold.launch.ready import prepare_run, require_same_code
from fourfold.launch.resolve import resolve_run
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.ownership import KEY
from fourfold.train.provenance import ALLOWED, CODE, MOST_LINEAGE, lineage_from
from fourfold.train.provenance import require_same_code as require_code_of_launch
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]
OTHER = "e" * 64


def test_a_digest_is_that_of_every_python_file_its_place_and_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "part" / "b.py").write_text("y = 2\n")
    seen = [source_digest(tmp_path)]

    def changed(change) -> bool:
        change()
        seen.append(source_digest(tmp_path))
        return seen[-1] not in seen[:-1]

    assert changed(lambda: (tmp_path / "a.py").write_text("x = 2\n"))
    assert changed(lambda: (tmp_path / "part" / "b.py").rename(tmp_path / "part" / "c.py"))
    assert changed(lambda: (tmp_path / "part" / "c.py").rename(tmp_path / "c.py"))
    assert changed(lambda: (tmp_path / "d.py").write_text(""))
    (tmp_path / "notes.txt").write_text("no code")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "e.py").write_text("")
    os.utime(tmp_path / "a.py", (1, 1))
    assert not changed(lambda: None)
    assert source_digest(tmp_path / "nowhere") == ""
    assert own_code().digest == source_digest(Path(fourfold.__file__).parent)


def test_code_that_is_not_known_is_no_other_code() -> None:
    own = OwnCode("1", OTHER)
    assert own.differs(OwnCode("2", OTHER)) and own.differs(OwnCode("1", "f" * 64))  # noqa: PT018
    assert not any(
        own.differs(each) for each in (own, OwnCode("2", ""), code_in({}), code_in({"versions": 7, "code": None}))
    )
    assert not OwnCode("1", "").differs(own)


def begun(out: Path, corpus: Path, run: str, steps: int = 4, **checkpoint: object) -> Path:
    make_run(out, corpus, batch={"steps": steps}, checkpoint={"every_steps": 2, **checkpoint})
    table = json.loads((out / "data.json").read_text())
    corpus_id = open_prepared(Path(table["prepared"])).corpus_id
    table |= {"corpus_id": corpus_id, KEY: {"run": run, "folder": str(out), "host": ""}}
    (out / "data.json").write_text(json.dumps(table))
    return out


def trained(out: Path) -> dict:
    codes, errors = finish(start_training(out, 1))
    assert codes == [0], errors
    folders = sorted((out / "checkpoints").iterdir())
    return read_manifest(folders[-1]).info


def saved_by(checkpoint: Path, code: str) -> None:
    """Makes a checkpoint one that other code saved."""
    manifest = read_manifest(checkpoint)
    info = {**manifest.info, "code": code}
    (checkpoint / "manifest.json").write_text(Manifest(**{**vars(manifest), "info": info}).to_json())


def test_a_checkpoint_says_its_code_data_config_and_the_runs_it_comes_from(tmp_path: Path, corpus: Path) -> None:
    """Two branches in a row: the lineage has a run each, with the step at which it was left."""
    first = begun(tmp_path / "a", corpus, "aaaa")
    info = trained(first)
    assert info["code"] == own_code().digest == source_digest(Path(fourfold.__file__).parent)
    assert info["versions"]["fourfold"] == own_code().version
    assert info["data"] == {"corpus_id": json.loads((first / "data.json").read_text())["corpus_id"]}
    assert info["lineage"] == []
    assert info["config"]["batch"]["steps"] == 4
    second = begun(tmp_path / "b", corpus, "bbbb", 8, start_from=str(first))
    third = begun(tmp_path / "c", corpus, "cccc", 12, start_from=str(second))
    one, two = trained(second)["lineage"], trained(third)["lineage"]
    assert [(each["run"], each["step"], each["code"]) for each in two] == [
        ("aaaa", 4, info["code"]),
        ("bbbb", 8, info["code"]),
    ]
    assert one == two[:1]
    assert one[0]["checkpoint"] == str(first / "checkpoints" / "step-000004")
    [branch] = [each for each in lines(third / "events.jsonl") if each["event"] == "branch"]
    assert (branch["step"], "bbbb" in branch["message"]) == (8, True)
    assert not [each for each in lines(third / "events.jsonl") if each["event"] == "code"]


def test_a_lineage_stays_short_and_takes_nothing_malformed() -> None:
    info = {"run": "b", "step": 3, "lineage": [{"run": "a", "step": number} for number in range(500)]}
    assert len(lineage_from(info, "c", Path("x"))) == MOST_LINEAGE
    assert lineage_from(info, "c", Path("x"))[-1]["run"] == "b"
    assert lineage_from({"lineage": [7, {"run": "a"}], "run": ["b"]}, "c", Path("x")) == [{"run": "a"}]
    assert lineage_from({"lineage": "x"}, "c", Path("x")) == []


def test_a_resume_under_other_code_is_refused_and_where_allowed_an_event_once(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = begun(tmp_path / "a", corpus, "aaaa")
    config = load_run(out / "run.toml", as_written=True)
    (out / "run.toml").write_text(dump_run(resolve_run(config, 1, None).config))  # complete, as a launch writes it
    trained(out)
    folder = RunFolder(out)
    newest = out / "checkpoints" / "step-000004"
    require_same_code(folder, load_run(out / "run.toml", as_written=True))
    saved_by(newest, OTHER)
    monkeypatch.setattr("fourfold.launch.ready.require_own_places", lambda *args: None)
    text = (out / "run.toml").read_text().replace("steps = 4\n", "steps = 6\n")
    (tmp_path / "longer.toml").write_text(text)
    longer = load_run(tmp_path / "longer.toml", as_written=True)
    assert num_steps(longer) == 6
    with pytest.raises(UserError) as refused:
        prepare_run(longer, 1, folder, print)
    for word in ("step 4", OTHER[:12], own_code().digest[:12], own_code().version, "--allow-other-code"):
        assert word in str(refused.value)
    ready = prepare_run(longer, 1, folder, print, allow_other_code=True)
    assert ready.data_table()[ALLOWED] is True
    (out / "run.toml").write_text(text)
    for again in (False, True):
        if again:  # killed before a checkpoint of its own, and started again
            shutil.rmtree(out / "checkpoints" / "step-000006")
        trained(out)
    changes = [each for each in lines(out / "events.jsonl") if each["event"] == "code"]
    assert [(each["step"], each["before"], each["now"]) for each in changes] == [(4, OTHER, own_code().digest)]
    assert read_manifest(out / "checkpoints" / "step-000006").info["code"] == own_code().digest


def change_the_code() -> None:
    os.environ[CODE] = OTHER


def test_ranks_that_start_after_the_code_changed_refuse_unless_it_is_allowed(tmp_path: Path, corpus: Path) -> None:
    out = begun(tmp_path / "a", corpus, "aaaa")
    codes, errors = finish(start_training(out, 2, change_the_code))
    assert 0 not in codes
    assert all(f"began with code {OTHER[:12]}" in error and "--allow-other-code" in error for error in errors)
    table = json.loads((out / "data.json").read_text())
    (out / "data.json").write_text(json.dumps({**table, ALLOWED: True}))
    codes, errors = finish(start_training(out, 2, change_the_code))
    assert codes == [0, 0], errors


def test_a_refusal_is_final_so_that_nobody_starts_the_ranks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE, OTHER)
    with pytest.raises(FinalFailure):
        require_code_of_launch({})
    require_code_of_launch({ALLOWED: True})
    monkeypatch.setenv(CODE, own_code().digest)
    require_code_of_launch({})
    monkeypatch.delenv(CODE)  # another launcher's ranks
    require_code_of_launch({})
