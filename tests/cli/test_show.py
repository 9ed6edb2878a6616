"""`show` prints the program: every instruction, its sums, its text form, its proof."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from fourfold.config import load_run
from fourfold.launch.resolve import resolve_run
from fourfold.program import from_text
from fourfold.program.liveness import ledger, memory_peak
from fourfold.program.schedule import Compute, Orders, catalogue, find_schedule

LAYOUT = ("layout.zero=3", "--ranks", "4")


def program(here, *overrides):
    return resolve_run(load_run(here / "run.toml", overrides), 4, 257).train_programs[0]


def test_the_table_has_every_instruction_in_order(fourfold, here) -> None:
    result = fourfold("show", "run.toml", *LAYOUT, "--limit", "0")
    expected = program(here, "layout.zero=3")
    rows = re.findall(r"^ *(\d+)  (\S.*?)(?:  |$)", result.out, re.MULTILINE)
    assert [short for _, short in rows] == [step.short for step in expected.instructions]
    assert result.out.count("<- peak") == 1


def test_a_long_program_is_shortened_in_the_middle(fourfold, here) -> None:
    steps = program(here, "layout.zero=3").instructions
    result = fourfold("show", "run.toml", *LAYOUT, "--limit", "10")
    assert f"{len(steps) - 10} more instructions" in result.out
    assert f"{len(steps) - 1}  {steps[-1].short}" in result.out


def test_json_is_one_document_whose_sums_are_the_programs(fourfold, here) -> None:
    document = json.loads(fourfold("show", "run.toml", *LAYOUT, "--json").out)
    expected = program(here, "layout.zero=3")
    assert document["totals"]["sent_bytes"] == ledger(expected)
    assert document["totals"]["peak_memory"]["bytes"] == memory_peak(expected).bytes
    assert sum(row["sent_bytes"] for row in document["program"]) == sum(ledger(expected).values())
    assert max(row["live_bytes"] for row in document["program"]) == memory_peak(expected).bytes
    assert document["layout"]["world_size"] == 4
    assert document["model"]["vocab_size"] == 320  # 257 bytes and end-of-text, padded to a multiple of 64


def test_the_text_form_is_read_back_and_verified(fourfold, here) -> None:
    text = fourfold("show", "run.toml", *LAYOUT, "--full").out
    assert from_text(text) == program(here, "layout.zero=3")
    (here / "program.txt").write_text(text)
    result = fourfold("show", "run.toml", *LAYOUT, "--program", "program.txt")
    assert (result.code, "sound" in result.out) == (0, True)


def test_a_broken_program_is_named_and_fails(fourfold, here) -> None:
    lines = fourfold("show", "run.toml", *LAYOUT, "--full").out.splitlines()
    dropped = next(line for line in lines if line.startswith("R b1 m0"))
    (here / "program.txt").write_text("\n".join(line for line in lines if line != dropped))
    result = fourfold("show", "run.toml", *LAYOUT, "--program", "program.txt")
    assert result.code == 1
    assert "NOT sound" in result.out
    assert "b1" in result.out
    document = json.loads(fourfold("show", "run.toml", *LAYOUT, "--program", "program.txt", "--json").out)
    assert document["sound"] is False
    assert document["faults"]


@pytest.mark.parametrize(
    "layout", [("--ranks", "1"), LAYOUT, ("layout.dp_replicate=2", "layout.zero=2", "--ranks", "4")]
)
def test_the_proof_counts_what_it_covers(fourfold, layout) -> None:
    result = fourfold("show", "run.toml", *layout, "--verify")
    assert result.code == 0
    assert result.out.count("sound: ") == 2  # a training step and an evaluation
    assert "NOT" not in result.out
    document = json.loads(fourfold("show", "run.toml", *layout, "--verify", "--json").out)
    assert document["sound"] is True
    assert document["proofs"][0]["instructions"] > 0


def test_show_names_the_transport_of_reductions_which_can_be_a_clusters(fourfold) -> None:
    asked = ("show", "run.toml", "--ranks", "2", "layout.zero=2")
    here, there = fourfold(*asked), fourfold(*asked, "--cluster", "dgx-h100")
    assert "reductions: exchanges over gloo" in here.out
    assert "reductions: NCCL's own" in there.out
    predicted = json.loads(
        fourfold("simulate", "run.toml", "layout.zero=2", "layout.dp_shard=2", "--cluster", "dgx-h100", "--json").out
    )
    shown = json.loads(fourfold(*asked, "--cluster", "dgx-h100", "--json").out)
    assert shown["totals"]["peak_memory"]["bytes"] == predicted["memory"][0]["program_bytes"]
    assert "reductions" not in fourfold("show", "run.toml", "--ranks", "1").out


def test_an_evaluation_has_no_backward(fourfold) -> None:
    out = fourfold("show", "run.toml", "--evaluate").out
    assert "forward (F)" in out
    assert "backward" not in out


def test_a_preset_needs_no_tokenizer_file(fourfold, here) -> None:
    text = '[model]\npreset = "llama3-8b"\n[batch]\nglobal_sequences = 8\nsequence_length = 8192\n'
    (here / "big.toml").write_text(text)
    out = fourfold("show", "big.toml", "data.tokenizer=/nowhere/tokenizer.json", *LAYOUT).out
    assert "8.03 G parameters" in out


@pytest.mark.parametrize("command", ["train", "show", "data", "sample", "import", "export"])
def test_every_command_explains_itself(fourfold, command) -> None:
    result = fourfold(command, "--help")
    assert result.code == 0
    assert len(result.out) > 300


@pytest.mark.parametrize("form", [(), ("--full",)])
def test_a_program_is_shown_with_the_legend_of_its_letters(fourfold, form) -> None:
    lines = fourfold("show", "run.toml", *LAYOUT, *form).out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip("# ").startswith("letters"))
    legend = " ".join(line.lstrip("# ").removeprefix("letters").strip() for line in lines[start:])
    for entry in (
        "F = forward",
        "R = reduce gradients",
        "wait = join what was started",
        "b3 = block 3",
        "m0 = microbatch 0",
    ):
        assert entry in legend
    assert "I = input gradient" not in legend  # no instruction of this program
    assert "r1 = rank 1" not in legend


BROKEN: dict[str, tuple[Callable[[list[list[Compute]]], object], int, str]] = {
    "an entry left out": (lambda orders: orders[1].pop(), 2, "rank 1 lacks B1.3 (of 4 microbatches)"),
    "an entry twice": (lambda orders: orders[1].append(orders[1][-1]), 1, "NOT sound"),
    "a deadlock": (lambda orders: orders[1].reverse(), 2, "schedule: deadlock: rank 1, entry 0"),
    "another rank's": (lambda orders: orders[1].insert(0, orders[0][0]), 1, "NOT sound"),
    "an error": (lambda orders: orders[9], 1, "gives no orders for 2 ranks of 1 stages and 4 microbatches: IndexError"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_schedule_whose_record_is_wrong_is_told_of_without_a_traceback(fourfold, here, monkeypatch, how: str) -> None:
    spoil, code, words = BROKEN[how]

    def orders(*size: object) -> Orders:
        rows = [[*row] for row in usual(*size)]
        spoil(rows)
        return tuple(map(tuple, rows))

    schedule = find_schedule("1f1b")
    usual = schedule.orders
    broken = replace(schedule, orders=orders)
    monkeypatch.setitem(catalogue._BY_NAME, "1f1b", broken)
    keys = ("layout.pp=2", "layout.dp_shard=1", "layout.schedule=1f1b", "batch.global_sequences=4")
    found = fourfold("show", "run.toml", *keys, "--verify")
    assert found.code == code, found.err
    assert words in found.out + found.err
    assert "Traceback" not in found.err
