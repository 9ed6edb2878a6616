"""Whole runs on real ranks: metrics, stopping and resuming to the bit, skipped steps, hangs that name who is missing."""

import json
import signal
from pathlib import Path

import pytest

from fourfold.checkpoint import read_manifest
from fourfold.config import dump_run, load_run, parse_run
from fourfold.config.optimizers import OPTIMIZERS
from fourfold.data.prepare import prepare
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import lower_step, rank_view, resolve_step
from fourfold.program.liveness import ledger, memory_peak
from fourfold.train.measured import read_measured
from fourfold.train.sample import generate
from tests.support.grid import others_are_rest
from tests.support.reference_optimizers import REFERENCES
from tests.support.training_ranks import TrainingRank, start_training
from tests.support.waiting import until

RUN = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 48},
    "data": {"tokenizer": "bytes", "document_mask": True},
    "batch": {"global_sequences": 8, "sequence_length": 32, "steps": 12},
    "optimizer": {"lr": 3e-3, "warmup_steps": 3},
    "checkpoint": {"every_steps": 4},
    "run": {
        "evaluate_every": 6,
        "evaluate_sequences": 5,
        "sample_tokens": 8,
        "timeout_seconds": 60.0,
        "threads_per_rank": 1,
    },
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"document {number} " + "of many words " * (number % 7 + 3))
    return folder


def make_run(out: Path, corpus: Path, **sections) -> Path:
    table = {name: {**RUN.get(name, {}), **sections.get(name, {})} for name in {*RUN, *sections}}
    table["data"] |= {"corpus": str(corpus), "directory": str(corpus.parent / "tokens")}
    table["model"].setdefault("vocab_size", 320)
    config = parse_run(table)
    prepared = prepare(config.data, lambda line: None)
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.toml").write_text(dump_run(config))
    (out / "data.json").write_text(json.dumps({"prepared": str(prepared.path)}))
    return out


def finish(ranks: list[TrainingRank], timeout: float = 120) -> tuple[list[int], list[str]]:
    codes, errors = zip(*(rank.finish(timeout) for rank in ranks), strict=True)
    return list(codes), list(errors)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_step(out: Path, step: int) -> None:
    metrics = out / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > step)


EXPERTS = {
    "family": "deepseek_v3", "num_layers": 3, "num_kv_heads": 4, "num_experts": 4, "top_k": 2, "moe_ffn_size": 24,
    "num_shared_experts": 1, "first_dense_layers": 1, "router": "sigmoid", "query_rank": 12, "key_value_rank": 8,
    "rope_head_dim": 4, "nope_head_dim": 4, "value_head_dim": 8, "balance_bias_speed": 0.01, "balance_loss": 0.01,
    "norm_eps": 1e-6,
}  # fmt: skip
RUNS = [
    (2, {"layout": {"zero": 0}}),
    (2, {"layout": {"zero": 1, "recompute": "selective"}, "precision": {"compute": "bf16"}}),
    (2, {"layout": {"zero": 3, "recompute": "full:1"}}),
    (4, {"layout": {"zero": 2, "dp_replicate": 2}}),
    (
        4,
        {
            "layout": {"pp": 2, "tp": 2, "sequence_parallel": True, "schedule": "zb_h1"},
            "model": {"tie_embeddings": True},
        },
    ),
    (4, {"layout": {"pp": 2, "cp": 2, "ep": 2, "zero": 1}, "model": EXPERTS}),
]


@pytest.mark.parametrize(
    ("ranks", "sections"),
    others_are_rest(RUNS, RUNS[2:3]),
    ids=lambda value: str(value["layout"]) if isinstance(value, dict) else None,
)
def test_stopped_and_resumed_is_the_same_run(tmp_path, corpus, ranks, sections) -> None:
    _check_resumed(tmp_path, corpus, ranks, sections)


@pytest.mark.parametrize("name", others_are_rest((name for name in OPTIMIZERS if name != "adamw"), ("muon",)))
def test_the_state_of_every_other_optimizer_is_resumed(tmp_path, corpus, name) -> None:
    _check_resumed(
        tmp_path, corpus, 2, {"layout": {"zero": 1}, "optimizer": {"name": name, **REFERENCES[name].settings}}
    )


def _check_resumed(tmp_path, corpus, ranks, sections) -> None:
    full = make_run(tmp_path / "whole", corpus, **sections)
    codes, errors = finish(start_training(full, ranks))
    assert codes == [0] * ranks, errors
    parts = make_run(tmp_path / "parts", corpus, **sections)
    processes = start_training(parts, ranks)
    wait_for_step(parts, 2)
    processes[-1].send_signal(signal.SIGTERM)  # one rank alone is told; all stop at the same step
    codes, errors = finish(processes)
    assert codes in ([3] * ranks, [0] * ranks), errors
    if codes[0] == 3:
        assert finish(start_training(parts, ranks))[0] == [0] * ranks
    expected, actual = (lines(folder / "metrics.jsonl") for folder in (full, parts))
    for key in ("step", "loss", "grad_norm", "lr", "tokens", "comm_bytes", "validation_loss"):
        assert [line.get(key) for line in actual] == [line.get(key) for line in expected], key
    assert [line["step"] for line in expected] == list(range(12))
    last, again = (read_manifest(folder / "checkpoints" / "step-000012") for folder in (full, parts))
    assert last.files == again.files, "weights and optimizer states are the same to the bit"


@pytest.mark.parametrize("tracks", [False, True])
def test_the_first_step_is_one_like_others_unless_its_memory_is_tracked(tmp_path, corpus, tracks) -> None:
    out = make_run(tmp_path / "run", corpus, run={"track_memory": tracks})
    assert finish(start_training(out, 1))[0] == [0]
    (measured,) = read_measured(out)
    recorded = lines(out / "metrics.jsonl")
    config = load_run(out / "run.toml")
    model = resolve_model(config.model)
    predicted = memory_peak(lower_step(rank_view(resolve_step(config, model, resolve_layout(config, model, 1))))).bytes
    if tracks:
        assert measured.peak_memory_bytes == pytest.approx(predicted, rel=0.05)
        assert {line["peak_memory_bytes"] for line in recorded} == {measured.peak_memory_bytes}
        assert measured.steps == len(recorded) - 1
    else:
        assert measured.peak_memory_bytes is None
        assert not any("peak_memory_bytes" in line for line in recorded)
        assert measured.steps == len(recorded)


def test_metrics_tell_what_the_program_declares(tmp_path, corpus) -> None:
    out = make_run(tmp_path / "run", corpus, layout={"zero": 3})
    assert finish(start_training(out, 2))[0] == [0, 0]
    config = load_run(out / "run.toml")
    model = resolve_model(config.model)
    declared = ledger(lower_step(rank_view(resolve_step(config, model, resolve_layout(config, model, 2)))))
    recorded = lines(out / "metrics.jsonl")
    required = {"step", "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "mfu"}
    for line in recorded:
        assert required | {"comm_bytes", "skipped_steps"} <= set(line)
        assert line["comm_bytes"] == declared
    assert recorded[-1]["loss"] < recorded[0]["loss"]
    assert [e["event"] for e in lines(out / "events.jsonl")][-2:] == ["finish", "sample"]
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    assert generate(out, "document", 5, 0.0, 0) == generate(out, "document", 5, 0.0, 1)


def test_a_step_that_is_faster_than_the_measured_peak_raises_it(tmp_path, corpus, monkeypatch) -> None:
    """After a restart the ranks take the peak of the start, here one that another load on the machine made far too low."""
    out = make_run(tmp_path / "run", corpus, batch={"steps": 3})
    (out / "events.jsonl").write_text(json.dumps({"event": "machine", "peak_flops": 1000.0}) + "\n")
    monkeypatch.setenv("FOURFOLD_GENERATION", "1")
    assert finish(start_training(out, 2))[0] == [0, 0]
    shares = [line["mfu"] for line in lines(out / "metrics.jsonl")]
    assert shares[0] == 1.0
    assert max(shares) == 1.0
    peaks = [event["peak_flops"] for event in lines(out / "events.jsonl") if event["event"] == "machine"]
    assert len(peaks) == 1 + shares.count(1.0)
    assert peaks == sorted(peaks)


def test_validation_loss_is_the_same_under_every_layout(tmp_path, corpus) -> None:
    """Five sequences fill the rows of no layout here but the first."""
    layouts = [
        (1, {"microbatch_sequences": 1}),
        (2, {"zero": 2, "microbatch_sequences": 2}),
        (4, {"pp": 2, "microbatch_sequences": 4}),
    ]
    losses = []
    for ranks, layout in layouts:
        out = make_run(tmp_path / str(ranks), corpus, layout=layout, precision={"compute": "fp64"}, batch={"steps": 2})
        codes, errors = finish(start_training(out, ranks))
        assert codes == [0] * ranks, errors
        losses.append(lines(out / "metrics.jsonl")[-1]["validation_loss"])
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-12)


def test_non_finite_gradients_are_skipped_and_counted(tmp_path, corpus) -> None:
    out = make_run(tmp_path / "run", corpus, optimizer={"lr": 1e30, "warmup_steps": 0}, batch={"steps": 4})
    codes, errors = finish(start_training(out, 2))
    assert codes == [0, 0], errors
    recorded = lines(out / "metrics.jsonl")
    assert recorded[0]["skipped_steps"] == 0
    assert recorded[-1]["skipped_steps"] == 3
    assert recorded[-1]["grad_norm"] is None


def test_a_hang_names_the_rank_and_its_instruction(tmp_path, corpus) -> None:
    out = make_run(
        tmp_path / "run",
        corpus,
        layout={"zero": 3},
        batch={"steps": 100000},
        checkpoint={"every_steps": 99999},
        run={"timeout_seconds": 4.0},
    )
    processes = start_training(out, 2)
    try:
        wait_for_step(out, 3)
        processes[1].send_signal(signal.SIGSTOP)
        code, error = processes[0].finish(60)
        assert code == 1
        assert "rank 0 waits at step" in error
        assert "rank 1 stopped at step" in error or "rank 1 has entered it, and was last seen at step" in error
        assert "Traceback" not in error
    finally:
        for process in processes:
            process.kill()


def test_a_lost_rank_is_a_message(tmp_path, corpus) -> None:
    out = make_run(
        tmp_path / "run",
        corpus,
        layout={"zero": 1},
        batch={"steps": 100000},
        checkpoint={"every_steps": 99999},
        run={"timeout_seconds": 20.0},
    )
    processes = start_training(out, 2)
    try:
        wait_for_step(out, 3)
        processes[1].kill()
        code, error = processes[0].finish(60)
        assert code == 1
        assert "rank 1 stopped at step" in error or "rank 1 has entered it, and was last seen at step" in error
        assert "Traceback" not in error
    finally:
        for process in processes:
            process.kill()
