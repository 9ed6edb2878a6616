"""How a rank ended is what it says itself: no exit code, and no line of a log, speaks for it."""

import os
import shutil
from pathlib import Path

import pytest

from fourfold.launch.failures import FINAL, MISTAKEN, describe_failure, summarize
from fourfold.train.exit_record import ExitRecord, ExitRecordFile, exit_record_file, read_exit_record


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "rank-00001.log"


def test_what_a_rank_says_is_read_back(tmp_path: Path, log: Path) -> None:
    record, path = ExitRecordFile(tmp_path, 1), exit_record_file(tmp_path, 1)
    size = path.stat().st_size
    assert read_exit_record(path, os.getpid()) == ExitRecord(os.getpid())
    for message in ("it broke", "\u0161\n" * 100, "\U0001f600" * 9000):
        assert record.say(4, message) == 4
        found = read_exit_record(path, os.getpid())
        assert found is not None
        assert found.code == 4
        assert 0 < len(found.message) <= len(message)
        assert message.startswith(found.message)
        assert path.stat().st_size == size, "its room was taken when the rank began"


def test_the_record_of_another_process_is_not_this_ones(tmp_path: Path, log: Path) -> None:
    ExitRecordFile(tmp_path, 1).say(3)
    assert read_exit_record(exit_record_file(tmp_path, 1), os.getpid() + 1) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"pid": 1, "code": "3", "message": ""}', "[" * 9000])
def test_a_file_that_no_rank_wrote_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "record").write_text(text)
    assert read_exit_record(tmp_path / "record", 1) is None


def test_a_rank_without_a_folder_to_write_to_goes_on(tmp_path: Path) -> None:
    assert ExitRecordFile(tmp_path / "none", 0).say(0) == 0


def test_an_older_error_in_the_log_does_not_win_over_what_the_rank_says(log: Path) -> None:
    log.write_text("error: a file of the corpus was skipped\nsome output\n")
    told = describe_failure(1, 1, log, record=ExitRecord(5, 1, "the device is gone"))
    assert (told.message, told.cause) == ("the device is gone", "exit")
    left = describe_failure(1, 1, log, record=ExitRecord(5))
    assert left.cause == "left"
    assert "ended with exit code 1 in mid-run, as after os._exit(1)" in left.message


def test_an_exception_after_an_older_error_is_the_cause(log: Path) -> None:
    log.write_text("error: skipped\nTraceback (most recent call last):\n  File x\nKeyError: 'lost'\n")
    message = describe_failure(1, 1, log).message
    assert "KeyError: 'lost'" in message
    assert not message.startswith("skipped")
    log.write_text(
        "Traceback (most recent call last):\n  File x\nKeyError: 'lost'\nerror: the disk is full\nfree 2 GB\n"
    )
    assert describe_failure(1, 1, log).message == "the disk is full\nfree 2 GB"


@pytest.mark.parametrize("code", [MISTAKEN, 3, FINAL])
def test_a_code_that_the_rank_does_not_own_to_has_no_meaning(log: Path, code: int) -> None:
    log.write_text("")
    left, told = (describe_failure(1, code, log, record=ExitRecord(5, own, "why")) for own in (None, code))
    assert (left.is_final, told.is_final) == (False, code != 3)
    assert summarize([left])[1] == 1
    assert summarize([told])[1] == (2 if code == MISTAKEN else 1)
    assert not left.only_noticed


def test_logs_that_somebody_deleted_are_no_full_disk(log: Path) -> None:
    shutil.rmtree(log.parent)
    failure = describe_failure(1, 1, log)
    assert not failure.is_final
    assert failure.message == f"rank 1 ended with exit code 1; its log {log} is gone"
