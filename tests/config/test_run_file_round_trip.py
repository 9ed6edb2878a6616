"""Overrides, defaults, and the resolved run that reads back as itself."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import RunConfig, UserError, dump_run, load_run, parse_run

BATCH = {"global_sequences": 8, "sequence_length": 16}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps({"batch": BATCH, "layout": {"zero": 1}, "optimizer": {"lr": 0.1}}))
    return file


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("layout.zero=3", "layout", "zero", 3),
        ("layout.zero = 3", "layout", "zero", 3),
        ("optimizer.lr=2e-4", "optimizer", "lr", 2e-4),
        ("optimizer.lr=1", "optimizer", "lr", 1.0),
        ("optimizer.betas=[0.8, 0.9]", "optimizer", "betas", (0.8, 0.9)),
        ("layout.recompute=full", "layout", "recompute", "full"),
        ("layout.recompute=full:2", "layout", "recompute", "full:2"),
        ('layout.recompute="full"', "layout", "recompute", "full"),
        ('layout.recompute=["full", "none"]', "layout", "recompute", ["full", "none"]),
        ("data.document_mask=true", "data", "document_mask", True),
        ("data.corpus=/a/b c=d.txt", "data", "corpus", "/a/b c=d.txt"),
        ("run.log=['wandb']", "run", "log", ["wandb"]),
        ("data.tokenizer=bpe:512", "data", "tokenizer", "bpe:512"),
        ("model.preset=llama3.1-8b", "model", "preset", "llama3.1-8b"),
    ],
)
def test_an_override_sets_its_key_and_nothing_else(
    path: Path, override: str, section: str, key: str, value: Any
) -> None:
    plain, changed = load_run(path), load_run(path, [override])
    assert getattr(getattr(changed, section), key) == value
    assert getattr(getattr(plain, section), key) != value
    undone = changed.model_copy(update={section: getattr(plain, section)})
    assert undone == plain
    rest = getattr(changed, section).model_copy(update={key: getattr(getattr(plain, section), key)})
    assert rest == getattr(plain, section)


def test_overrides_apply_in_order_and_reach_nested_tables(path: Path) -> None:
    config = load_run(
        path,
        [
            "layout.zero=2",
            "layout.zero=3",
            "model.rope_scaling.factor=8.0",
            "model.rope_scaling.low_freq_factor=1.0",
            "model.rope_scaling.high_freq_factor=4.0",
            "model.rope_scaling.original_max_position=8192",
        ],
    )
    assert config.layout.zero == 3
    assert config.model.rope_scaling is not None
    assert config.model.rope_scaling.factor == 8.0


@pytest.mark.parametrize(
    "override", ["layout.zero", "zero=3", "=3", ".zero=3", "layout.=3", "layout", "", "layout..zero=1", "--zero=3"]
)
def test_an_override_in_another_form_is_shown_the_right_one(path: Path, override: str) -> None:
    with pytest.raises(UserError) as caught:
        load_run(path, [override])
    assert repr(override) in str(caught.value)
    assert "layout.zero=3" in str(caught.value)


def test_an_override_below_a_value_is_refused(path: Path) -> None:
    with pytest.raises(UserError, match="'zero' is a value, not a section"):
        load_run(path, ["layout.zero.x=3"])


@pytest.mark.parametrize("override", ["layout.zero=", "layout.zero=three", "layout.zeros=3", "layouts.zero=3"])
def test_an_override_is_checked_like_the_file(path: Path, override: str) -> None:
    with pytest.raises(UserError) as caught:
        load_run(path, [override])
    assert override.partition("=")[0] in str(caught.value) or "layouts" in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_left_out_takes_the_documented_defaults() -> None:
    config = parse_run({"batch": BATCH})
    assert config.layout.zero == 0
    assert config.precision.compute == "fp32"
    assert config.optimizer.clip_norm == 1.0
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.data.corpus == "stdlib"


NUMBERS = st.floats(1e-9, 1e3, allow_nan=False)
POSITIVE = st.integers(1, 10**9)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _maybe(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


RUNS = st.fixed_dictionaries(
    {"batch": st.fixed_dictionaries(dict.fromkeys(BATCH, POSITIVE), optional={"steps": POSITIVE, "tokens": POSITIVE})},
    optional={
        "model": _maybe(
            preset=TEXT,
            hf=TEXT,
            num_layers=st.integers(1, 100_000),
            tie_embeddings=st.booleans(),
            rope_theta=NUMBERS,
            rope_scaling=st.fixed_dictionaries(
                {
                    "factor": NUMBERS,
                    "low_freq_factor": NUMBERS,
                    "high_freq_factor": NUMBERS,
                    "original_max_position": POSITIVE,
                }
            ),
            family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
        ),
        "data": _maybe(
            corpus=TEXT
            | st.lists(
                st.fixed_dictionaries({"path": TEXT}, optional={"weight": NUMBERS | st.integers(1, 9)}), max_size=3
            ),
            tokenizer=TEXT,
            document_mask=st.booleans(),
        ),
        "layout": _maybe(
            zero=st.integers(0, 3),
            dp_shard=POSITIVE,
            recompute=TEXT | st.lists(TEXT, max_size=3),
            prefetch=st.integers(0, 9),
            overlap_experts=st.booleans(),
            sequence_parallel=st.booleans(),
        ),
        "precision": _maybe(
            compute=st.sampled_from(["fp64", "fp32", "bf16"]), master=st.sampled_from(["fp64", "fp32"])
        ),
        "optimizer": _maybe(
            lr=NUMBERS,
            betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)).map(list),
            clip_norm=NUMBERS,
            schedule=st.sampled_from(["cosine", "wsd", "constant"]),
        ),
        "run": _maybe(
            seed=st.integers(0, 2**63 - 1),
            log=st.lists(st.sampled_from(["tensorboard", "wandb", "mlflow"]), max_size=3),
        ),
        "checkpoint": _maybe(every_steps=POSITIVE, directory=TEXT),
    },
)


@settings(max_examples=300, deadline=None)
@given(RUNS)
def test_a_resolved_run_reads_back_as_itself(tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any]) -> None:
    config = parse_run(table)
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    file.write_text(dump_run(config), encoding="utf-8")
    again = load_run(file, as_written=True)
    assert again == config
    assert dump_run(again) == dump_run(config)


def test_no_clipping_survives_the_round_trip(tmp_path: Path) -> None:
    """`clip_norm` has a default and TOML no null: 0 says that nothing is clipped."""
    config = RunConfig.model_validate({"batch": BATCH, "optimizer": {"clip_norm": None}})
    file = tmp_path / "resolved.toml"
    file.write_text(dump_run(config))
    assert load_run(file).optimizer.clip_norm is None
    assert load_run(file, ["optimizer.clip_norm=0"]) == load_run(file)
    assert load_run(file, ["optimizer.clip_norm=0.5"]).optimizer.clip_norm == 0.5


def test_a_mark_at_the_start_of_a_file_is_not_seen(path: Path) -> None:
    """The byte order mark that editors on Windows write."""
    plain = load_run(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_run(path) == plain
