"""`fourfold plan`: what it prints agrees with its JSON, a chosen layout runs as it was priced, every mistake has one message."""

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

import fourfold as ff
from tests.calibrate.machine_table import cluster
from tests.cli.planning import ASKED, DECIDED, SMALL, document, text
from tests.export.launched import launched


def test_the_text_is_the_document(fourfold) -> None:
    found = document(fourfold, *SMALL, "--explain", "tp=8", "--explain", "tp=3")
    printed = text(fourfold, *SMALL, "--explain", "tp=8", "--explain", "tp=3")
    assert len(found["best"]) == 3
    for each in found["best"]:
        assert each["words"] in printed
        assert each["memory_bytes"] <= found["memory_limit_bytes"]
        rate = found["tokens"] / each["step_seconds"] / 16
        assert each["tokens_per_second_per_device"] == pytest.approx(rate)
    assert f"{found['counts']['layouts']:,} layouts" in printed
    baseline = found["heuristic_baseline"]  # 8B parameters on 16 devices of 80 GB: FSDP
    assert (baseline["layout"]["tp"], baseline["layout"]["zero"], baseline["layout"]["dp_shard"]) == (1, 3, 16)
    assert baseline["words"] in printed
    first, second = found["explanations"]
    assert first["layout"]["layout"]["tp"] == 8
    assert second["layout"] is None
    assert second["refused"] in " ".join(printed.split())


def test_the_layout_is_priced_as_simulate_prices_it(fourfold) -> None:
    best = document(fourfold, *SMALL)["best"][0]
    keys = [f"layout.{k}={v if not isinstance(v, bool) else str(v).lower()}" for k, v in best["layout"].items()]
    run = ("preset:llama3-70b", "model.preset=llama3-8b", "batch.sequence_length=8192", "batch.global_sequences=64")
    result = fourfold("simulate", *run, "precision.compute=bf16", *keys, "--cluster", "dgx-h100:16",
                      "--software", "fourfold", "--json")  # fmt: skip
    assert result.code == 0, result.err
    assert json.loads(result.out)["step_seconds"] == pytest.approx(best["step_seconds"], rel=1e-9)


def test_how_sure_the_order_is(fourfold) -> None:
    """Layouts within the interval of the first one's time are counted, in the text too."""
    found = document(fourfold, *SMALL)
    low, high = found["best_step"]["step_seconds_interval"]
    assert low < found["best"][0]["step_seconds"] < high
    within = sum(each["step_seconds"] <= high for each in found["best"])
    assert found["within_interval"] == within > 1
    printed = text(fourfold, *SMALL)
    assert f"1 to {within} lie within it of one another" in printed


def test_a_job_for_a_scheduler_runs_the_file_that_is_written(fourfold, here: Path) -> None:
    result = fourfold("plan", *SMALL, *DECIDED, "--tokens", "1T", "--as", "slurm", "--out", "planned.toml")
    assert result.code == 0, result.err
    assert f"fourfold train {here}/planned.toml" in result.out
    assert "#SBATCH --nodes=2" in result.out
    found = document(fourfold, *SMALL, *DECIDED, "--tokens", "1T", "--as", "k8s", "--out", "other.toml")
    assert "kind: TrainJob" in found["export"]["text"]
    refused = fourfold("plan", *SMALL, "--as", "skypilot")
    assert (refused.code, "--out run.toml" in refused.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        SMALL,
        pytest.param((*ASKED, "--keep", "3", "--objective", "model"), marks=pytest.mark.rest),
        pytest.param(
            (*ASKED, "--keep", "3", "--objective", "devices", "--tokens", "1T", "--deadline-days", "2000"),
            marks=pytest.mark.rest,
        ),
        pytest.param(
            (*SMALL[:4], "--sequence-length", "32768", "--batch-tokens", "2M", "--dtype", "fp32"),
            marks=pytest.mark.rest,
        ),
        (
            "run.toml",
            "precision.gradients=bf16",
            "optimizer.clip_norm=0",
            "layout.prefetch=2",
            "--cluster",
            "dgx-h100:4",
        ),
    ],
    ids=["as asked", "another model", "fewer devices", "longer than the model, fp32", "a run file"],
)
def test_what_is_written_is_the_run_that_was_planned(fourfold, here: Path, arguments: tuple[str, ...]) -> None:
    found = document(fourfold, *arguments, "--out", "planned.toml")
    assert found["run_file"] == "planned.toml"
    result = fourfold("simulate", "planned.toml", "--json")
    assert result.code == 0, result.err
    predicted = json.loads(result.out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert max(rank["device_bytes"] for rank in predicted["memory"]) == found["best"][0]["memory_bytes"]
    assert predicted["devices"] == found["devices"]
    assert fourfold("plan", *arguments, "--out", "planned.toml").code == 2, "nothing is written over"
    if arguments[0] == "run.toml":
        table = tomllib.loads((here / "planned.toml").read_text())
        assert table["optimizer"]["clip_norm"] == 0
        assert table["layout"]["prefetch"] == 2
        assert table["precision"]["gradients"] == "bf16"
        assert table["data"]["tokenizer"] == "bytes"


def test_the_best_is_shown_closer(fourfold) -> None:
    found = document(fourfold, *SMALL)
    printed = text(fourfold, *SMALL)
    best_step = found["best_step"]
    assert best_step["step_seconds"] == found["best"][0]["step_seconds"]
    assert "best layout: the step is limited by its critical path" in printed
    assert best_step["communication"]
    for each in best_step["communication"][:1]:
        assert f"{each['axes']}  " in printed
        assert set(each["levels"]) <= {"nvlink", "rail"}
        assert ", ".join(each["levels"]) in printed
    peak = max(best_step["memory"], key=lambda rank: rank["device_bytes"])
    assert peak["instruction"] in printed


def test_a_plan_of_a_measured_machine_is_as_simulate_prices_it(fourfold, here: Path) -> None:
    (here / "machine.toml").write_text(tomli_w.dumps(cluster()))
    found = document(fourfold, "run.toml", "--cluster", "machine.toml", "--explain", "dp=4", "--out", "planned.toml")
    predicted = json.loads(fourfold("simulate", "planned.toml", "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)


def test_a_planned_run_of_a_folders_model_lies_anywhere(fourfold, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "vocab_size": 1000,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    }
    (here / "hf").mkdir()
    (here / "hf" / "config.json").write_text(json.dumps({"model_type": "llama", **small}))
    asked = ("--model", "hf", "--cluster", "dgx-h100:8", "--sequence-length", "1024", "--batch-sequences", "64")
    (here / "elsewhere").mkdir()
    found = document(fourfold, *asked, "--out", "elsewhere/planned.toml")
    monkeypatch.chdir(here / "elsewhere")
    predicted = json.loads(fourfold("simulate", "planned.toml", "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert "batch.steps or batch.tokens" in (here / "elsewhere" / "planned.toml").read_text()


def test_a_layout_is_explained_where_nothing_fits(fourfold) -> None:
    asked = ("--model", "llama3-70b", "--cluster", "dgx-h100:8", "--sequence-length", "8192", "--batch-sequences", "64")
    result = fourfold("plan", *asked, "layout.offload_optimizer=false", "--explain", "tp=8")
    assert result.code == 1
    assert "with tp = 8: nothing with it fits: the least that a device would hold is " in result.out


def test_sequences_beyond_what_the_model_was_made_for_are_remarked(fourfold) -> None:
    remark = "made for sequences of 8,192 tokens"
    assert remark not in text(fourfold, *SMALL)
    assert remark in text(fourfold, *SMALL[:4], "--sequence-length", "16384", *SMALL[6:])


def test_a_run_file_plans_itself(fourfold) -> None:
    found = document(fourfold, "run.toml", "--cluster", "dgx-h100:8", "--keep", "1")
    assert found["global_sequences"] > 0
    assert fourfold("show", "run.toml", "layout=auto", "cluster.preset=dgx-h100", "--ranks", "8").code == 0


def test_keys_beside_auto_are_kept(fourfold) -> None:
    result = fourfold(
        "show", "run.toml", "layout=auto", "layout.zero=3", "cluster.preset=dgx-h100", "--ranks", "4", "--limit", "2"
    )
    assert "ZeRO-3" in result.out, result.err


@pytest.mark.parametrize("trainer", ["megatron", "bridge", "torchtitan", "deepspeed"])
def test_scripts_of_other_trainers(fourfold, trainer: str, tmp_path: Path) -> None:
    message = document(fourfold, *SMALL, *DECIDED, "--as", trainer)["export"]
    layout = document(fourfold, *SMALL)["best"][0]["layout"]
    launched(message["text"], tmp_path)
    if trainer == "megatron":
        assert f"--tensor-model-parallel-size {layout['tp']}" in message["text"]
        assert "--global-batch-size 64" in message["text"]
    elif trainer == "bridge":
        recipe = (tmp_path / "pretrain.py").read_text()
        assert f"tensor_model_parallel_size={layout['tp']}," in recipe
        assert "global_batch_size=64" in recipe
    elif trainer == "torchtitan":
        file = (tmp_path / "planned.py").read_text()
        assert f"tensor_parallel_degree={layout['tp']}," in file
        assert "global_batch_size=64," in file
    else:
        assert json.loads((tmp_path / "ds_config.json").read_text())["train_batch_size"] == 64


def test_a_script_has_the_settings_of_the_run_file(fourfold, tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        'model.preset = "llama3-8b"\ndata.corpus = "texts"\nbatch.global_sequences = 64\nbatch.sequence_length = 8192\n'
        "batch.tokens = 100_000_000\noptimizer.lr = 2e-4\noptimizer.warmup_steps = 20\noptimizer.betas = [0.9, 0.98]\n"
        "checkpoint.every_steps = 50\nrun.evaluate_every = 25\nrun.seed = 7\n"
    )
    text = document(fourfold, str(run), "--cluster", "dgx-h100:16", "--as", "megatron")["export"]["text"]
    stated = ("--train-iters 191", "--lr 0.0002", "--lr-warmup-iters 20", "--adam-beta2 0.98", "--seed 7")
    for flag in (*stated, "--save-interval 50", "--eval-interval 25"):
        assert flag in text, flag
    assert "STEPS" not in text


def test_what_cannot_fit_says_what_would(fourfold) -> None:
    result = fourfold(
        "plan",
        "--model",
        "llama3-405b",
        "--cluster",
        "dgx-h100:8",
        "--sequence-length",
        "8192",
        "--batch-sequences",
        "64",
    )
    assert result.code == 1
    assert "nothing fits" in result.out
    assert "the nearest that fits: " in result.out


def test_tokens_become_sequences_that_divide(fourfold) -> None:
    found = document(
        fourfold,
        "--model",
        "llama3-8b",
        "--cluster",
        "dgx-h100:8",
        "--sequence-length",
        "8192",
        "--batch-tokens",
        "1M",
        "--keep",
        "1",
    )
    assert found["global_sequences"] == 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "what is to be planned?"),
        (("--model", "llama3-8b"), "--cluster is missing"),
        (("--model", "llama3-8b", "--cluster", "dgx-h100:8"), "--sequence-length is missing"),
        (("--model", "llama3-8b", "--cluster", "dgx-h100:8", "--sequence-length", "8192"), "the batch is missing"),
        ((*SMALL, "--explain", "speed=3"), "--explain"),
        ((*SMALL[:-1], "0"), "--keep 0"),
        ((*SMALL, "--memory-share", "2"), "--memory-share"),
        ((*SMALL, "--budget", "0"), "--budget"),
        ((*SMALL, "--out", "plan.json"), "--out plan.json"),
        ((*SMALL, "--out", "nowhere/plan.toml"), "--out nowhere/plan.toml"),
        ((*SMALL, "--out", "run.toml"), "is there already"),
        ((*SMALL, "--objective", "cheapest"), "--tokens"),
        ((*SMALL, "--objective", "cheapest", "--tokens", "1T", "--price", "0"), "--price 0"),
        (("--model", "gpt3-175b", *SMALL[2:]), "2048 learned positions"),
        ((*SMALL, "--objective", "devices", "--tokens", "1T"), "--deadline-days"),
        (("--model", "lama3-8b", *SMALL[2:]), "llama3-8b"),
        (("run.toml", "--cluster", "this"), "calibrate"),
    ],
)  # fmt: skip
def test_mistakes_have_one_message(fourfold, arguments: tuple[str, ...], message: str) -> None:
    result = fourfold("plan", *arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize(
    "asked",
    [
        ("--model", "llama3-70b", "--cluster", "dgx-h100:64", "--sequence-length", "8192", "--batch-tokens", "4M"),
        (*ASKED, "--for", "megatron"),
        (*ASKED, "--tokens", "1T"),
    ],
)
def test_a_plan_is_a_screen(fourfold, monkeypatch, columns: int, asked: tuple[str, ...]) -> None:
    """Verdict, three rows, what is assumed, what comes next: at most 25 lines, and three that only they have said."""
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = fourfold("plan", *asked, "--budget", "9").out.splitlines()
    assert len(lines) <= 25 + 3 * (columns == 80 and len(asked) > 8)
    assert max(map(len, lines)) <= columns
    labels = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert labels[:4] == ["memory", "step", "time", "change"]
    assert {"assumed", "software", "by", "next"} <= set(labels)
    software = next(line for line in lines if line.startswith("software"))
    assert ("tried on one GPU" in software) == ("--for" not in asked)
    assert "megatron" in software or "megatron" in lines[lines.index(software) + 1]
    assert [line[:2] for line in lines if line[:2] in (" 1", " 2", " 3")] == [" 1", " 2", " 3"]


def test_other_software_s_times_of_the_first_layout_are_those_of_its_steps(fourfold) -> None:
    planned = ff.plan(
        model="llama3-8b", cluster="dgx-h100:16", sequence_length=8192, batch_sequences=64, for_="megatron", budget=1
    )
    assert planned.best is not None
    others = planned.elsewhere()
    assert [name for name, _ in others] == ["fourfold", "torchtitan"]
    for name, seconds in others:
        if seconds is not None:
            assert seconds == ff.simulate(planned.run(), software=name).step_seconds
