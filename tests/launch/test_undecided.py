"""A large run names its text, its tokenizer, its learning rate and its warm-up, or it is not submitted; a small one need not."""

from pathlib import Path

import pytest

from fourfold.config import RunConfig, UserError, dump_run, parse_run
from fourfold.config.run_file import load_run
from fourfold.launch.resolve import resolve_run
from fourfold.launch.undecided import MOST_EPOCHS, require_decided, require_text, undecided

DECIDED = {
    "data": {"corpus": "/shared/text", "tokenizer": "tokenizer.json"},
    "optimizer": {"lr": 3e-4, "warmup_steps": 0},
}


def run(preset: str = "llama3-8b", **sections: dict) -> RunConfig:
    batch = {"global_sequences": 8, "sequence_length": 2048, "steps": 1000}
    return parse_run({"model": {"preset": preset}, "batch": batch, **sections})


def open_keys(config: RunConfig) -> set[str]:
    resolved = resolve_run(config, 1, 4096)
    return {each.key for each in undecided(config, resolved.model)}


@pytest.mark.parametrize("left", ["data.corpus", "data.tokenizer", "optimizer.lr", "optimizer.warmup_steps"])
def test_each_key_that_is_left_out_is_named(left: str) -> None:
    section, key = left.split(".")
    sections = {name: {k: v for k, v in keys.items() if (name, k) != (section, key)} for name, keys in DECIDED.items()}
    config = run(**sections)
    assert open_keys(config) == {left}
    resolved = resolve_run(config, 1, None)
    with pytest.raises(UserError, match=rf"{left}: not stated: .*\nwhat works: {left}=\S+$"):
        require_decided(config, resolved.model)


def test_what_is_stated_is_decided_though_it_is_the_default() -> None:
    assert open_keys(run(**DECIDED)) == set()
    assert open_keys(run("smollm2-135m")) == {"data.corpus", "data.tokenizer", "optimizer.lr", "optimizer.warmup_steps"}
    assert open_keys(run("tiny")) == set(), "a small run"


def test_values_that_cannot_be_meant_are_named() -> None:
    small = {**DECIDED, "data": {"corpus": "/shared/text", "tokenizer": "bpe:4096"}}
    assert open_keys(run(**small)) == {"data.tokenizer"}
    assert open_keys(run(**{**small, "data": {"corpus": "/shared/text", "tokenizer": "bytes"}})) == {"data.tokenizer"}
    long = {**DECIDED, "optimizer": {"lr": 3e-4, "warmup_steps": 1000}}
    assert open_keys(run(**long)) == {"optimizer.warmup_steps"}


@pytest.mark.parametrize(
    ("tokens", "fits"), [(16384 * 1000 // MOST_EPOCHS, True), (16384 * 1000 // MOST_EPOCHS - 1, False)]
)
def test_a_corpus_is_read_four_times_at_most(tokens: int, fits: bool) -> None:
    config = run(**DECIDED)
    model = resolve_run(config, 1, None).model
    require_text(config, resolve_run(run("tiny"), 1, 4096).model, 10, 1)  # a small run may
    if fits:
        return require_text(config, model, model.vocab_size, tokens)
    with pytest.raises(UserError, match=r"data.corpus: has [\d,]+ tokens for training, .* 4\.0 times, over 4"):
        require_text(config, model, model.vocab_size, tokens)
    return None


def test_a_tokenizer_that_turns_out_small_is_named() -> None:
    config = run(**DECIDED)
    model = resolve_run(config, 1, None).model
    with pytest.raises(UserError, match=r"data.tokenizer: 32,000 entries, and the model has 128,256"):
        require_text(config, model, 32_000, 10**9)


def test_a_short_run_file_keeps_what_was_stated(tmp_path: Path) -> None:
    """The job of a cluster carries the run as such a file."""
    path = tmp_path / "run.toml"
    path.write_text(dump_run(run(**DECIDED), brief=True))
    assert open_keys(load_run(path, ())) == set()
    path.write_text(dump_run(run(), brief=True))
    assert len(open_keys(load_run(path, ()))) == 4
