"""Every mistake in a run file gives one message that names the key and offers what works; what it offers does work."""

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import RunConfig, UserError, load_run, parse_run
from tests.config.good_run import RUN, message_of, resolve, section_at, with_key


def test_the_run_that_the_mistakes_are_made_in_is_good() -> None:
    resolve(RUN)


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("layout.zeros", "zero"),
        ("layout.dp_shards", "dp_shard"),
        ("batch.global_seqences", "global_sequences"),
        ("optimizer.learning_rate", None),
        ("optimizer.weight_dacay", "weight_decay"),
        ("model.num_layer", "num_layers"),
        ("model.rope_scaling.factr", "factor"),
        ("precision.computes", "compute"),
        ("run.sed", "seed"),
        ("checkpoint.every_step", "every_steps"),
        ("modle", "model"),
        ("data.corpu", "corpus"),
        ("cluster.presets", "preset"),
    ],
)
def test_an_unknown_key_gets_the_nearest_right_one(key: str, right: str | None) -> None:
    table = with_key(key, 1)
    if key.startswith("model.rope_scaling"):
        scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8, "factor": 2.0}
        table["model"]["rope_scaling"] = {**scaling, "factr": 1}
    message = message_of(table)
    assert f"unknown key '{key}'" in message
    if right is None:
        assert re.search(r"allowed: .*\blr\b", message)
    else:
        assert f"did you mean {right!r}" in message


def test_a_key_of_another_section_is_sent_there() -> None:
    message = message_of(with_key("layout.lr", 0.1))
    assert "unknown key 'layout.lr'" in message
    assert "it belongs to section [optimizer]" in message


WRONG_TYPES = [
    ("layout.zero", 4),
    ("layout.zero", -1),
    ("layout.zero", "three"),
    ("layout.zero", 1.0),
    ("layout.zero", True),
    ("layout.zero", [1]),
    ("layout.dp_shard", 0),
    ("layout.prefetch", -1),
    ("layout.microbatch_sequences", 0),
    ("layout.recompute", 3),
    ("layout.recompute", [1, 2]),
    ("batch.global_sequences", 0),
    ("batch.global_sequences", "8"),
    ("batch.sequence_length", -16),
    ("batch.sequence_length", 16.5),
    ("batch.steps", 0),
    ("batch.steps", 1e3),
    ("precision.compute", "fp16"),
    ("precision.compute", 32),
    ("precision.master", "bf16"),
    ("optimizer.lr", 0),
    ("optimizer.lr", -1e-3),
    ("optimizer.lr", float("nan")),
    ("optimizer.lr", float("inf")),
    ("optimizer.lr", "fast"),
    ("optimizer.name", "adam"),
    ("optimizer.schedule", "step"),
    ("optimizer.betas", [0.9]),
    ("optimizer.betas", [0.9, 0.95, 0.99]),
    ("optimizer.betas", [0.9, 1.0]),
    ("optimizer.betas", 0.9),
    ("optimizer.betas", "0.9, 0.95"),
    ("optimizer.clip_norm", -1),
    ("optimizer.clip_norm", False),
    ("optimizer.min_lr_ratio", 1.5),
    ("optimizer.warmup_steps", -1),
    ("optimizer.decay_fraction", 0),
    ("optimizer.weight_decay", -0.1),
    ("model.num_layers", 0),
    ("model.hidden_size", "wide"),
    ("model.tie_embeddings", "yes"),
    ("model.tie_embeddings", 1),
    ("model.family", 8),
    ("model.router", "topk"),
    ("model.top_k", -1),
    ("model.capacity_factor", -0.5),
    ("model.num_expert_groups", 0),
    ("model.yarn_scaling", 40),
    ("model.norm", "batch"),
    ("layout.segments_per_stage", 4),
    ("layout.segments_per_stage", [4, 0]),
    ("model.rope_scaling", 8),
    ("model.preset", 8),
    ("data.validation_every", 1),
    ("data.document_mask", "true"),
    ("data.bos", 1),
    ("data.bos", "yes"),
    ("data.bad_records", True),
    ("data.skip", 0.01),
    ("data.eos", -1),
    ("data.corpus", 3),
    ("data.corpus", [3]),
    ("data.corpus", [{"path": "x", "weight": 0}]),
    ("run.seed", -1),
    ("run.seed", 2**63),
    ("run.device", "tpu"),
    ("run.log", "wandb"),
    ("run.log", ["mlflo"]),
    ("run.timeout_seconds", 0),
    ("checkpoint.every_steps", 0),
    ("checkpoint.keep", "all"),
    ("layout", 3),
    ("batch", []),
    ("model", "llama3-8b"),
]


@pytest.mark.parametrize(("key", "value"), WRONG_TYPES)
def test_a_wrong_value_is_named_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        parse_run(with_key(key, value))
    message = str(caught.value)
    assert key in message
    assert caught.value.exit_code == 2
    assert "pydantic" not in message
    if not isinstance(value, (dict, list)):
        assert repr(value) in message
    offered = re.search(r"a value that works: (.+)", message.splitlines()[0])
    if offered and "=" not in offered[1]:
        parse_run(with_key(key, tomllib.loads(f"value = {offered[1]}")["value"]))


@pytest.mark.parametrize("key", ["batch", "batch.global_sequences", "batch.sequence_length"])
def test_a_missing_key_is_named_with_an_example(key: str) -> None:
    table = copy.deepcopy(RUN)
    *path, last = key.split(".")
    target = table
    for part in path:
        target = target[part]
    del target[last]
    message = message_of(table)
    assert f"key '{key}' is missing" in message
    assert "for example" in message
    assert "= 8" in message or "= 256" in message


@pytest.mark.parametrize("key", ["num_layers", "hidden_size", "num_heads", "ffn_size", "vocab_size"])
def test_a_missing_dimension_is_named_with_one_that_works(key: str) -> None:
    table = copy.deepcopy(RUN)
    del table["model"][key]
    if key == "num_heads":
        del table["model"]["num_kv_heads"]
    message = message_of(table)
    assert f"model.{key} is missing" in message
    (name, value) = re.search(r"for example (\w+) = (\d+)", message).groups()  # type: ignore[union-attr]
    assert name == key
    if key not in ("num_heads", "hidden_size"):
        resolve(with_key(f"model.{key}", int(value)))
    assert 'preset = "tiny"' in message


def test_several_mistakes_are_all_named() -> None:
    table = with_key("layout.zero", 7)
    table["optimizer"] = {"lr": -1, "momentum": 0.9}
    with pytest.raises(UserError) as caught:
        parse_run(table, source="mine.toml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mine.toml: ") for line in lines)


# The file itself


def test_a_missing_file_is_named_and_its_neighbour_offered(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(tomli_w.dumps(RUN))
    with pytest.raises(UserError, match=r"run\.toml: no such run file; there is .*other\.toml"):
        load_run(tmp_path / "run.toml")
    with pytest.raises(UserError, match=r"no such run file$"):
        load_run(tmp_path / "none" / "run.toml")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"[model\n", b"a = \n", b"[model]\nx = 1\nx = 2\n", b"\x00"], ids=repr
)
def test_a_file_that_is_no_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_run(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_no_run_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_run(tmp_path)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted({f"{name}.{key}" for name in RunConfig.model_fields for key in section_at(name).model_fields})


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*KEYS, *RunConfig.model_fields, "x.y", "model.x"]), JUNK, max_size=4))
def test_any_junk_is_accepted_or_answered_with_a_message(junk: dict[str, Any]) -> None:
    table = copy.deepcopy(RUN)
    for key, value in sorted(junk.items()):
        section, _, name = key.partition(".")
        if name and isinstance(table.setdefault(section, {}), dict):
            table[section][name] = value
        else:
            table[section] = value
    message = "accepted"
    try:
        resolve(table)
    except UserError as error:
        message = str(error)
    assert message.strip()
