"""`fourfold simulate`: what it prints agrees with what it gives as JSON, and every mistake has one message."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

from fourfold.report.units import format_figure, seconds_text

LLAMA = ("preset:llama3-405b-16k", "--cluster", "h100-24576", "--ranks", "16384")
SMALL = ("run.toml", "--cluster", "dgx-h100:4", "layout.pp=2", "layout.dp_shard=2", "layout.zero=1")


def document(fourfold, *arguments: str) -> dict:
    result = fourfold("simulate", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_what_is_printed_is_what_json_says(fourfold) -> None:
    found = document(fourfold, *LLAMA)
    text = fourfold("simulate", *LLAMA).out
    assert f"MFU        {100 * found['mfu']:.1f} %" in text
    assert f"HFU        {100 * found['hfu']:.1f} %" in text
    assert f"bubble     {100 * found['bubble_fraction']:.1f} %" in text
    assert "16,384 of them used" in text
    assert "the step is limited by its critical path" in text
    assert next(iter(found["critical_path_seconds"])) in text
    assert found["memory"][0]["instruction"] in text
    for each in found["communication"][:2]:
        assert f"\n{each['axes']} " in text


def test_the_figures_agree_with_each_other(fourfold) -> None:
    found = document(fourfold, *LLAMA)
    assert found["tokens"] == 2048 * 8192
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["step_seconds"])
    achieved = found["flops_per_token"] * found["tokens_per_second_per_device"]
    assert found["mfu"] == pytest.approx(achieved / found["peak_flops_per_second"])
    for rank in found["spent_seconds"]:
        assert sum(rank.values()) == pytest.approx(found["step_seconds"])
    assert sum(found["critical_path_seconds"].values()) == pytest.approx(found["step_seconds"])
    assert len(found["memory"]) == len(found["spent_seconds"]) == 16
    assert found["fits"] == (max(m["device_bytes"] for m in found["memory"]) <= found["device_memory_bytes"])
    run = found["run"]
    assert run["tokens"] == 15_600_000_000_000
    assert run["training_seconds"] == pytest.approx(run["steps"] * found["step_seconds"])
    assert run["seconds"] == pytest.approx(run["training_seconds"] / run["goodput"])
    assert run["dollars"] is None  # the cluster states no price


def test_money_time_and_failures_can_be_stated(fourfold) -> None:
    options = ("--tokens", "1T", "--price", "2.5", "--failure-hours", "50k", "--checkpoint-seconds", "30")
    run = document(fourfold, *LLAMA, *options, "--restart-seconds", "300", "--repair-seconds", "1e4")["run"]
    assert run["tokens"] == 10**12
    failures = run["failures"]
    assert failures["mean_seconds_between"] == pytest.approx(50_000 * 3600 / 16_384)
    assert (failures["checkpoint_seconds"], failures["restart_seconds"], failures["repair_seconds"]) == (
        30,
        300,
        10_000,
    )
    devices = 16_384 + failures["spare_devices"]
    assert run["dollars"] == pytest.approx(2.5 * devices * run["seconds"] / 3600)
    assert failures["goodput_without_spares"] < failures["goodput_with_spares"] == run["goodput"] < 1
    text = fourfold("simulate", *LLAMA, *options).out
    assert "Young 1974" in text
    assert "30.0 s (given)" in text
    assert "at $2.5 a device hour" in text


def test_a_small_run_file(fourfold) -> None:
    text = fourfold("simulate", *SMALL).out
    assert "4 ranks: pp 2 (1f1b), dp_shard 2, ZeRO-1" in text
    assert "no failure rate is known" in text
    assert "fits" in text
    alone = fourfold("simulate", *SMALL, "--pp-rank", "1").out
    assert "pp 1" in alone
    assert "pp 0 " not in alone


def test_the_cluster_of_the_run_file_is_the_default(fourfold, here) -> None:
    (here / "clustered.toml").write_text((here / "run.toml").read_text() + '[cluster]\npreset = "dgx-a100:4"\n')
    assert document(fourfold, "clustered.toml")["device"] == "a100-sxm-80"
    assert document(fourfold, "clustered.toml", "--cluster", "dgx-h100:4")["device"] == "h100-sxm"


def test_an_automatic_layout_is_of_the_cluster_that_is_asked(fourfold) -> None:
    found = document(fourfold, "run.toml", "layout=auto", "--cluster", "dgx-a100:4")
    assert (found["device"], found["devices"]) == ("a100-sxm-80", 4)


def test_a_run_that_never_ends_and_one_that_is_over_at_once(fourfold) -> None:
    text = fourfold("simulate", *LLAMA, "--tokens", "15T", "--failure-hours", "1", "--price", "2").out
    assert "more than any run outlasts" in text
    assert "nothing is ever kept" in text
    assert "inf" not in text
    short = fourfold("simulate", *SMALL, "--tokens", "1M").out
    assert "kWh" in short
    assert " 0 device hours" not in short


def test_memory_over_the_step(fourfold) -> None:
    found = document(fourfold, *SMALL, "--memory")
    for curve, peak in zip(found["memory_over_time"], found["memory"], strict=True):
        assert max(curve["bytes"]) == peak["program_bytes"]
    text = fourfold("simulate", *SMALL, "--memory").out
    assert "    activations " in text
    assert "█" in text
    assert "memory_over_time" not in document(fourfold, *SMALL)


def test_a_trace_of_every_microbatch(fourfold, here) -> None:
    result = fourfold("simulate", *SMALL, "batch.global_sequences=64", "--trace", "trace.json")
    assert result.code == 0
    assert "ui.perfetto.dev" in result.out
    assert "and with fewer microbatches, and extrapolated linearly to" in result.out
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    forwards = {e["name"] for e in events if e["name"].startswith("F b0 ")}
    assert len(forwards) == 32


def test_a_trace_says_what_it_cuts(fourfold, here, monkeypatch) -> None:
    monkeypatch.setattr("fourfold.simulate.prediction.TRACE_INSTRUCTIONS", 1000)
    result = fourfold("simulate", *SMALL, "batch.global_sequences=640", "--trace", "trace.json")
    events = json.loads((here / "trace.json").read_text())["traceEvents"]
    forwards = {e["name"] for e in events if e["name"].startswith("F b0 ")}
    assert 0 < len(forwards) < 320
    assert f"it shows {len(forwards)} of 320 microbatches" in result.out


def test_it_is_repeatable_and_needs_no_torch(fourfold) -> None:
    code = (
        "import sys; from fourfold.cli.app import run; "
        f"assert run(['simulate', *{LLAMA!r}]) == 0; assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert run.returncode == 0, run.stderr
    assert run.stdout == fourfold("simulate", *LLAMA).out


def test_a_layout_that_does_not_fit_is_reported(fourfold) -> None:
    one = (
        "layout.pp=1",
        "layout.virtual_stages=1",
        "layout.cp=1",
        "layout.tp=8",
        "layout.dp_shard=1",
        "layout.schedule=1f1b",
    )
    result = fourfold("simulate", "preset:llama3-70b", "--cluster", "dgx-h100:8", *one, "batch.global_sequences=8")
    assert result.code == 1
    assert "DOES NOT FIT" in result.out
    assert re.search(r"^change  layout\.\S+.*: .* still .* too much$", result.out.replace("\n ", ""), re.MULTILINE)


def test_a_host_that_cannot_take_the_states_is_reported(fourfold, here) -> None:
    """The device could hold the rest."""
    share = "host_memory_bytes_per_device"
    assert fourfold("cluster", "new", "--device", "h100-sxm:8", "--out", "hosts.toml").code == 0
    path, text = here / "hosts.toml", (here / "hosts.toml").read_text()
    layout = (
        "layout.dp_shard=8",
        "layout.offload_optimizer=true",
        "layout.recompute=full",
        "batch.global_sequences=16",
    )
    words = ("preset:llama3.1-8b-128", "--cluster", "hosts.toml", "--software", "fourfold", *layout)
    for size, code in ((20_000_000_000, 0), (10_000_000_000, 1)):
        path.write_text(f"{share} = {size}\n{text}")
        result = fourfold("simulate", *words)
        assert result.code == code, result.out + result.err
    memory, _, _, change = result.out.splitlines()[:4]  # no terminal: as long as they are
    assert re.match(r"memory  DOES NOT FIT: the host lacks 2\.\d+ GB; device \d\S* of 81.6 GB usable$", memory)
    assert re.match(r"change  layout\.\S+=\S+.*: (surely|likely) fits \(\d\d %\), ", change)
    assert "host       12.3 GB of 10.0 GB for each device at most" in result.out  # 12.0 GB, rounded to powers of two
    assert not json.loads(fourfold("simulate", *words, "--json").out)["fits"]
    assert fourfold("simulate", *words, "layout.offload_optimizer=false").code == 0


def test_software_of_the_literature_is_slower_or_faster_but_named(fourfold) -> None:
    found = document(fourfold, *LLAMA, "--software", "meta")
    assert found["software"] == "meta"
    assert found["step_seconds"] == document(fourfold, *LLAMA)["step_seconds"], "the preset's own"
    ours = fourfold("simulate", *LLAMA, "--software", "fourfold", "--json")
    assert ours.code == 1, "its communicators leave too little memory for the published layout"
    assert json.loads(ours.out)["step_seconds"] != found["step_seconds"]


def test_a_published_figure_stands_beside_the_prediction(fourfold) -> None:
    found = document(fourfold, "preset:llama3-405b-16k")
    published = found["published"]
    flops = found["flops_per_token"] * found["tokens"]
    assert published["step_seconds"] == pytest.approx(flops / (400e12 * 16384))
    assert published["error"] == pytest.approx(found["step_seconds"] / published["step_seconds"] - 1)
    text = fourfold("simulate", "preset:llama3-405b-16k").out
    assert f"published  400 TFLOP/s/device, {seconds_text(published['step_seconds'])} a step" in text
    assert "table 4, row 2" in text
    assert document(fourfold, "preset:gpt3-175b")["published"]["step_seconds"] == 13.75


def test_another_run_than_the_published_one_has_no_published_figure(fourfold) -> None:
    assert document(fourfold, "preset:llama3-405b-16k", "layout.zero=1")["published"] is None
    assert document(fourfold, *LLAMA)["published"] is None, "on another cluster"
    assert document(fourfold, *SMALL)["published"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run.toml",), "--cluster is missing"),
        ((*LLAMA[:1], "--cluster", "h100-24577"), "did you mean h100-24576"),
        ((*LLAMA[:1], "--cluster", "this"), "fourfold calibrate"),
        ((*LLAMA[:1], "--cluster", "nothing.toml"), "nothing.toml: no such file"),
        ((*LLAMA[:1], "--cluster", "dgx-h100:8"), "what works: --cluster dgx-h100:16384"),
        ((*LLAMA[:1], "--cluster", "dgx-h100:1024"), "layout.dp_shard=8"),
        (("preset:llama3-405b", "--cluster", "dgx-h100"), "did you mean preset:llama3-405b"),
        ((*LLAMA[:3], "--ranks", "100"), "100"),
        ((*LLAMA, "--pp-rank", "16"), "allowed: 0 to 15"),
        ((*LLAMA, "--software", "megatrn"), "allowed: fourfold"),
        ((*LLAMA, "--tokens", "15X"), "--tokens 15.6T"),
        ((*LLAMA, "--tokens", "0"), "--tokens 15.6T"),
        ((*LLAMA, "--tokens", "1e99"), "--tokens 15.6T"),
        ((*LLAMA, "--failure-hours", "nan"), "--failure-hours 50k"),
        ((*LLAMA, "--failure-hours", "0"), "--failure-hours 50k"),
        ((*LLAMA, "--checkpoint-seconds", "0"), "--checkpoint-seconds 60"),
        ((*LLAMA, "--restart-seconds", "x"), "--restart-seconds 600"),
        ((*LLAMA, "--repair-seconds", "1e12"), "--repair-seconds 14400"),
        ((*LLAMA, "--price", "free"), "--price 2.5"),
        ((*LLAMA, "model.num_layers=100000"), "model.num_layers = 100000"),
        ((*LLAMA, "layout.schedule=auto", "batch.global_sequences=2000000000"), "too much to simulate"),
    ],
)
def test_every_mistake_has_a_message(fourfold, arguments, message) -> None:
    result = fourfold("simulate", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.out == ""


def test_a_trace_that_cannot_be_written(fourfold) -> None:
    result = fourfold("simulate", *SMALL, "--trace", "none/trace.json")
    assert result.code == 1
    assert "--trace none/trace.json" in result.err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15.6T", 15.6e12),
        ("16M", 16e6),
        ("2k", 2e3),
        ("3G", 3e9),
        ("3B", 3e9),
        ("1_000", 1e3),
        ("1e6", 1e6),
        (".5k", 500),
    ],
)
def test_numbers_have_suffixes(text: str, value: float) -> None:
    from fourfold.api.numbers import parse_number

    assert parse_number(text, "--tokens", "1T") == pytest.approx(value)


def test_it_explains_itself(fourfold) -> None:
    result = fourfold("simulate", "--help")
    assert result.code == 0
    for option in (
        "--cluster",
        "--software",
        "--memory",
        "--trace",
        "--tokens",
        "--failure-hours",
        "--checkpoint-seconds",
        "--price",
    ):
        assert option in result.out


def test_four_lines_come_first_and_fit_80_columns(fourfold, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for run in (
        LLAMA,
        SMALL,
        ("preset:llama3-70b", "layout.zero=3"),
        ("preset:gpt3-175b",),
    ):
        text, found = fourfold("simulate", *run).out, json.loads(fourfold("simulate", *run, "--json").out)
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line.split()[0] for line in lines[:4]] == ["memory", "step", "time", "change"]
        assert "" in lines[4:12]
        assert ("too much" in lines[0]) != found["fits"]
        assert f"fit ({math.floor(100 * found['fit']['probability'])} %)" in lines[0].lower().replace("fits", "fit")
        assert (
            f"MFU {100 * found['mfu']:.1f} %, {format_figure(found['tokens_per_second_per_device'])} tokens/s/device"
            in lines[1]
        )
        compute, exposed = (
            float(re.search(rf"{what} (-?[0-9.]+) %", lines[2])[1]) for what in ("compute", "exposed comm")
        )
        assert f"bubble {100 * found['bubble_fraction']:.1f} %" in lines[2]
        assert compute + exposed + 100 * found["waiting_fraction"] == pytest.approx(100, abs=0.15)


def test_tables_are_shortened_and_not_broken_at_80_columns(fourfold, monkeypatch) -> None:
    long = fourfold("simulate", *LLAMA).out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = fourfold("simulate", *LLAMA).out
    assert " pp 1 " in long
    for head in ("where the seconds go", "communication ", "device "):
        start = next(i for i, line in enumerate(narrow.splitlines()) if line.startswith(head))
        rows = narrow.splitlines()[start : narrow.splitlines().index("", start)]
        assert all(row[0] != " " for row in rows if not row.startswith(" " * 11)), "no row is continued"
        assert len([row for row in long.splitlines() if row.startswith(head)]) == 1


def test_devices_that_stay_idle_are_named_and_fail(fourfold) -> None:
    stated = ("run.toml", "--cluster", "dgx-h100:8", "layout.pp=2", "layout.dp_shard=2")
    result = fourfold("simulate", *stated)
    assert result.code == 1
    line = next(line for line in result.out.splitlines() if line.startswith("idle: "))
    assert "4 of 8 devices: layout.dp_shard=4 uses all; --ranks 4 predicts these alone" in line
    as_json = fourfold("simulate", *stated, "--json")
    assert as_json.code == 1
    assert "4 of 8 devices" in json.loads(as_json.out)["idle"]
    assert fourfold("simulate", *stated, "--ranks", "4").code == 0
    assert fourfold("simulate", "run.toml", "--cluster", "dgx-h100:4", *stated[3:]).code == 0
    assert fourfold("simulate", *stated[:-1], "layout.dp_shard=4").code == 0
    uneven = fourfold("simulate", *stated[:3], "layout.tp=1", "layout.cp=1", "layout.dp_shard=3").out
    assert "layout.dp_shard=8 with batch.global_sequences=16 uses all" in uneven


def test_an_open_dp_shard_fills_the_cluster_as_far_as_the_batch_divides(fourfold) -> None:
    assert document(fourfold, "run.toml", "--cluster", "dgx-h100:4")["devices"] == 4
    assert document(fourfold, "run.toml", "--cluster", "dgx-h100:8", "layout.pp=2")["devices"] == 8
    result = fourfold("simulate", "run.toml", "--cluster", "dgx-h100:8", "--json")  # 12 sequences on 8 devices
    found = json.loads(result.out)
    assert (result.code, found["devices"]) == (1, 6)
    assert "2 of 8 devices: layout.dp_shard=8 with batch.global_sequences=16 uses all" in found["idle"]
    shown = fourfold("show", "run.toml", "--cluster", "dgx-h100:8")
    assert "6 ranks: dp_shard 6" in shown.out


def test_devices_that_are_rented_and_idle_stand_in_the_first_lines_and_in_the_cost(fourfold) -> None:
    words = ("preset:llama3-70b", "--tokens", "1T", "--price", "2")
    few = fourfold("simulate", *words, "--cluster", "dgx-h100:64")
    many = fourfold("simulate", *words, "--cluster", "dgx-h100:512")
    alone = fourfold("simulate", *words, "--cluster", "dgx-h100:512", "--ranks", "64")
    assert (few.code, many.code, alone.code) == (0, 1, 0)
    assert many.out.splitlines()[3].startswith("idle:   448 of 512 devices")
    cost = [line for line in many.out.splitlines() if line.startswith("cost")]
    assert len(cost) == 1
    assert "for 512 rented devices, 448 of them idle" in " ".join(many.out.split())
    runs = [
        json.loads(fourfold("simulate", *words, "--cluster", name, *more, "--json").out)["run"]
        for name, more in (("dgx-h100:64", ()), ("dgx-h100:512", ()), ("dgx-h100:512", ("--ranks", "64")))
    ]
    assert runs[1]["dollars"] == pytest.approx(8 * runs[0]["dollars"])
    assert runs[2]["dollars"] == pytest.approx(runs[0]["dollars"])


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_devices_without_bf16_do_not_train_in_it(fourfold, command: str) -> None:
    refused = fourfold(command, "preset:llama3-70b", "--cluster", "dgx-1-v100:64")
    assert (refused.code, refused.out) == (2, "")
    assert "NVIDIA V100 SXM2 32 GB has no bf16 (its formats: fp64, fp32, fp16)" in refused.err
    assert fourfold("simulate", "preset:llama3-70b", "precision.compute=fp32", "--cluster", "dgx-1-v100:64").code in (
        0,
        1,
    )


@pytest.mark.parametrize("layout", [("layout=auto",), ("layout.pp=1", "layout.virtual_stages=1")])
def test_a_layout_that_takes_all_devices_wants_to_know_how_many(fourfold, layout: tuple[str, ...], here) -> None:
    text = '[model]\npreset = "tiny"\n[batch]\nglobal_sequences = 8\nsequence_length = 64\nsteps = 3\n'
    (here / "open.toml").write_text(text)
    for command in (("simulate",), ("job", "--as", "slurm")):
        refused = fourfold(command[0], "open.toml", *layout, *command[1:], "--cluster", "dgx-h100")
        assert refused.code == 2
        assert "--cluster dgx-h100: of how many devices?" in refused.err
    assert fourfold("simulate", "open.toml", "--cluster", "dgx-h100:8").code == 0
    assert fourfold("simulate", "open.toml", "--cluster", "dgx-h100", "layout.dp_shard=4").code == 0, "it says how many"
