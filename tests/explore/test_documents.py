"""Documents are what `--json` prints, and have the types from which the page's sources are generated."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.config.layout_section import LayoutSection
from fourfold.config.optimizers import OPTIMIZERS
from fourfold.config.schema import BatchSection, PrecisionSection
from fourfold.explore.board.runs import BOARD_RUN
from fourfold.explore.documents import DOCUMENTS, encoded
from fourfold.explore.run import KEYS
from fourfold.explore.schema import SCHEMAS
from fourfold.explore.setup import Malformed, body_of, read_setup
from fourfold.explore.tasks.task import first_task_text, task_named
from tools.page_types import main

SMALL = {
    "model.preset": "smollm2-135m",
    "batch.global_sequences": 16,
    "batch.sequence_length": 512,
    "precision.compute": "bf16",
}
BODIES: dict[str, dict[str, Any]] = {
    "simulate": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8", "memory": True, "tokens": "1G"},
    "estimate": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8"},
    "advice": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8"},
    "plan": {"overrides": SMALL, "cluster": "dgx-h100:2", "explain": ["tp=2", "pp=3"], "tokens": "1G", "budget": 1},
    "catalog": {},
    "collective": {"kind": "all_to_all", "ranks": 6, "per_node": 3, "buffer_bytes": 3e6, "cluster": "dgx-h100"},
    "block": {"overrides": SMALL, "cluster": "dgx-h100:8", "tp": 3, "cp": 2},
    "cluster": {"cluster": "tpu-v5p-8960:64"},
    "groups": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8", "axes": "pp", "rank": 3},
    "roofline": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8"},
    "attention": {"cluster": "dgx-h100", "sequences": 1, "tokens": 4096, "heads": 8, "head_dim": 64, "causal": True,
                  "order": "2022"},
    "texts": {"overrides": SMALL, "cluster": "dgx-h100:8"},
    "program": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8", "pp_rank": 1},
    "verify": {"overrides": SMALL | {"layout.pp": 2}, "cluster": "dgx-h100:8"},
    "pipeline": {"overrides": SMALL, "cluster": "dgx-h100:8", "ranks": 2, "microbatches": 4, "schedule": "zb_v"},
    "trace": {"overrides": SMALL, "cluster": "dgx-h100:8", "ranks": 2, "microbatches": 4, "schedule": "zb_v"},
    "slots": {"overrides": SMALL, "ranks": 2, "microbatches": 4, "schedule": "zb_v", "pp_rank": 1},
    "board": {"ranks": 2, "microbatches": 2, "rows": "F0.0 B0.0 F0.1 B0.1:F1.1 F1.0 B1.0 B1.1"},
    "moves": {"setting": "both", "moves": "6-7:"},
    "by_hand": {"kind": "all_reduce", "ranks": 4, "nodes": 2, "steps": "A0,1.0-1 A0.2-3:K0.0-0"},
    "tasks": {},
    "accuracy": {},
    "accuracy_run": {"id": "llm_c:0"},
    "own_task": {"text": first_task_text()},
    "task": {"task": "two-halves-of-a-backward", **body_of(task_named("two-halves-of-a-backward").start)},
    "model": {"config": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}},
}  # fmt: skip


WINDOWED = {"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": 4096, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 256,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}  # fmt: skip


def silent(text: str, share: float) -> None:
    pass


@pytest.mark.parametrize("name", BODIES)
def test_a_document_has_its_type(name: str) -> None:
    TypeAdapter(SCHEMAS[name]).validate_json(encoded(name, BODIES[name], silent), strict=True)


def test_every_document_has_a_type() -> None:
    """Documents of a run's folder are tested in test_run.py."""
    assert set(SCHEMAS) == {*BODIES, *KEYS, BOARD_RUN}
    assert set(DOCUMENTS) <= set(SCHEMAS)


def test_the_generated_sources_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_a_step_is_what_simulate_prints() -> None:
    for run, overrides in (("preset:llama3-70b", {}), ("preset:llama3.1-8b-128", {"layout.recompute": "full"})):
        ours = json.loads(encoded("simulate", {"run": run, "overrides": overrides}, silent))
        assert ours == json.loads(json.dumps(simulate(run, overrides).to_json(advice=False)))


def test_the_estimate_is_near_the_step() -> None:
    for run in ("preset:llama3-70b", "preset:deepseek-v3-2k"):
        quick = json.loads(encoded("estimate", {"run": run}, silent))
        step = simulate(run)
        assert quick["step_seconds"] == pytest.approx(step.step_seconds, rel=0.1)
        assert quick["tokens_per_second"] == pytest.approx(step.tokens_per_second, rel=0.1)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"run": "/etc/passwd"}, "allowed: preset:NAME"),
        ({"run": "preset:llama3-70b", "cluster": "../x.toml"}, "files"),
        ({"run": "preset:llama3-70b", "software": "./mine.toml"}, "files"),
        ({"overrides": {"model.block": "python:os:system"}}, "cannot be stated"),
        ({"overrides": {'model.block="python:os:x"#': 1}}, "cannot be stated"),
        ({"overrides": {"model.hf": "/root"}}, "cannot be stated"),
        ({"overrides": {"layout.auto": True}}, "cannot be stated"),
        ({"overrides": {"layout.schedule": "python:os:system"}}, "files and code"),
        ({"overrides": {"layout.schedule": "file:/etc/passwd"}}, "files and code"),
        ({"overrides": {"data.tokenizer": "/etc/passwd"}}, "files"),
        ({"overrides": {"data.corpus": "/etc"}}, "cannot be stated"),
        ({"overrides": {"layout": "auto"}}, "cannot be stated"),
        ({"overrides": {"layout.tp": {"a": {"b": 1}}}}, "overrides"),
        ({"overrides": [1]}, "overrides"),
        ({"more": 1}, "more"),
        ({"run": "preset:" + "x" * 1000}, "run"),
    ],
)
def test_a_request_reads_no_file_and_runs_no_code(body: dict[str, Any], word: str) -> None:
    with pytest.raises(Malformed, match=word):
        read_setup(body)


def test_a_model_of_several_kinds_of_layer_is_simulated_as_its_config_says() -> None:
    """A dropped config.json becomes overrides, and these a step in which each kind of layer has its cost."""
    stated = json.loads(encoded("model", {"config": WINDOWED}, silent))["overrides"]
    body = {"overrides": {**SMALL, **stated, "model.preset": None}, "cluster": "dgx-h100:8"}
    kinds = json.loads(encoded("simulate", body, silent))["layers"]
    assert [each["numbers"] for each in kinds] == [[0, 2], [1]]
    assert [" within 256 tokens" in each["words"] for each in kinds] == [True, False]


def test_a_layout_that_cannot_run_is_an_answer() -> None:
    with pytest.raises(UserError, match="tp") as found:
        encoded("simulate", {"overrides": SMALL | {"layout.tp": 7}, "cluster": "dgx-h100:8"}, silent)
    assert not isinstance(found.value, Malformed)


def test_every_key_that_a_step_depends_on_is_in_the_catalog() -> None:
    """Keys of every optimizer are there too, with its own defaults; `read_setup` takes each of them."""
    keys = json.loads(encoded("catalog", {}, silent))["keys"]
    found = {(each["key"], each["optimizer"]) for each in keys}
    assert len(found) == len(keys)
    for name, section in OPTIMIZERS.items():
        assert {(f"optimizer.{key}", name) for key in section.model_fields if key != "name"} <= found
    for section in (BatchSection, LayoutSection, PrecisionSection):
        name = section.__name__.removesuffix("Section").lower()
        assert {(f"{name}.{key}", None) for key in section.model_fields} - found <= {("layout.auto", None)}
    assert {("run.attention_backend", None), ("checkpoint.memory_every_steps", None)} <= found
    rates = {each["optimizer"]: each["default"] for each in keys if each["key"] == "optimizer.lr"}
    assert rates == {name: section.model_fields["lr"].default for name, section in OPTIMIZERS.items()}
    [optimizer] = [each for each in keys if each["key"] == "optimizer.name"]
    assert optimizer["allowed"] == [*OPTIMIZERS]
    assert all(each["help"] for each in keys)
    for each in keys:
        read_setup({"overrides": {each["key"]: 1}})


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("model", {"config": {"model_type": "llama", "num_hidden_layers": 1_000_000, "hidden_size": 64, "num_attention_heads": 4,
                              "intermediate_size": 128, "vocab_size": 512}}, "model.num_layers = 1000000"),
        ("simulate", {"overrides": SMALL, "cluster": "dgx-h100:8", "price": "NaN"}, "--price 'NaN': not a number"),
        ("simulate", {"overrides": SMALL, "cluster": "dgx-h100:8", "tokens": "-1"}, "--tokens"),
        ("simulate", {"overrides": SMALL | {"model.num_layers": 10**6}, "cluster": "dgx-h100:8"}, "model.num_layers = 1000000"),
    ],
)  # fmt: skip
def test_a_wild_value_is_an_ordinary_message(name: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        encoded(name, body, silent)
    assert words in str(error.value)
    assert "pydantic" not in str(error.value)
