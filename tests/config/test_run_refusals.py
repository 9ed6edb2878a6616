"""A run file that is well formed but cannot run is refused; the value that the message offers works."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelSection, UserError
from fourfold.huggingface import resolve_model
from tests.config.good_run import MODEL, RUN, message_of, resolve, with_key

OFFER = re.compile(r"a value that works: (?:(\w+) = )?'?([\w.]+)'?")


@pytest.mark.parametrize(
    ("key", "changes", "ranks"),
    [
        ("model.num_heads", {"model.num_heads": 5, "model.num_kv_heads": 1}, None),
        ("model.num_heads", {"model.num_heads": 7}, None),
        ("model.num_heads", {"model.hidden_size": 99, "model.num_heads": 4}, None),
        ("model.num_heads", {"model.hidden_size": 100, "model.num_heads": 16, "model.num_kv_heads": 8}, None),
        ("model.num_heads", {"model.hidden_size": 36, "model.num_heads": 8}, None),
        ("model.num_kv_heads", {"model.num_kv_heads": 3}, None),
        ("model.num_kv_heads", {"model.num_kv_heads": 8}, None),
        ("model.num_kv_heads", {"model.num_heads": 4, "model.num_kv_heads": 5}, None),
        ("batch.global_sequences", {"layout.dp_shard": 3}, None),
        ("batch.global_sequences", {"layout.microbatch_sequences": 5}, None),
        ("batch.global_sequences", {"layout.dp_replicate": 2, "layout.dp_shard": 3, "layout.zero": 3}, None),
        ("batch.global_sequences", {"batch.global_sequences": 3}, 4),
        ("layout.dp_replicate", {"layout.dp_replicate": 3}, 4),
        ("layout.dp_replicate", {"layout.dp_replicate": 8}, 4),
    ],
)
def test_the_offered_value_works(key: str, changes: dict[str, Any], ranks: int | None) -> None:
    table = copy.deepcopy(RUN)
    for changed, value in changes.items():
        section, name = changed.split(".")
        table.setdefault(section, {})[name] = value
    message = message_of(table, ranks)
    assert key in message
    offered = OFFER.search(message)
    assert offered, message
    section, name = key.split(".")
    value = {"false": False, "true": True}.get(offered[2], offered[2])
    value = int(value) if isinstance(value, str) else value
    table[section][offered[1] or name] = value
    resolve(table, ranks)


@pytest.mark.parametrize("family", ["bert", "", "Llama", "x" * 1000])
def test_a_family_that_is_not_known_is_named_with_one_that_is(family: str) -> None:
    table = with_key("model.family", family)
    message = message_of(table)
    assert f"model.family = {family!r}" in message
    assert "custom" in message
    table["model"]["family"] = message.rpartition("a value that works: ")[2]
    resolve(table)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 200), st.integers(1, 24), st.none() | st.integers(1, 24), st.none() | st.integers(1, 40))
def test_any_heads_that_do_not_divide_are_corrected_by_following_the_messages(
    hidden: int, heads: int, kv_heads: int | None, head_dim: int | None
) -> None:
    """Whoever does what each message says arrives at a model that runs, in a few rounds."""
    model: dict[str, Any] = {**MODEL, "hidden_size": hidden, "num_heads": heads}
    del model["num_kv_heads"]
    model.update({k: v for k, v in (("num_kv_heads", kv_heads), ("head_dim", head_dim)) if v is not None})
    for _ in range(4):
        try:
            config = resolve_model(ModelSection(**model))
        except UserError as error:
            offered = OFFER.search(str(error))
            if offered:
                model[offered[1]] = int(offered[2])
            else:
                model["head_dim"] = int(re.search(r"for example (\d+)", str(error))[1])  # type: ignore[index]
            continue
        assert config.num_heads % config.num_kv_heads == 0
        assert config.head_dim % 2 == 0
        return
    pytest.fail(f"the advice goes round in circles: {model}")


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({"layout.sequence_parallel": True}, None, ["layout.sequence_parallel", "allowed: false"]),
        ({"layout.dp_replicate": 2, "layout.dp_shard": 2}, 3, ["needs 4 ranks", "there are 3", "--ranks 4"]),
        ({"layout.dp_shard": 4}, 2, ["--ranks 4", "layout.dp_shard"]),
        ({"layout.recompute": "some"}, None, ["layout.recompute = 'some'", "none, selective, full"]),
        ({"layout.recompute": "some:1"}, None, ["layout.recompute = 'some:1'", "none, selective, full"]),
        ({"layout.recompute": "some:0"}, None, ["layout.recompute = 'some:0'", "none, selective, full"]),
        ({"layout.recompute": "full:3"}, None, ["layout.recompute = 'full:3'", "up to 2"]),
        ({"layout.recompute": "full:-1"}, None, ["layout.recompute = 'full:-1'"]),
        ({"layout.recompute": ["full"]}, None, ["layout.recompute", "1 policies for 2 blocks"]),
        ({"layout.recompute": ["full", "most"]}, None, ["'most'", "none, selective, full"]),
        ({"model.head_dim": 7}, None, ["model.head_dim = 7", "8"]),
        ({"model.max_position": 8}, None, ["batch.sequence_length = 16", "model.max_position = 8"]),
        ({"model.preset": "llama9"}, None, ["model.preset = 'llama9'", "llama3-8b", "tiny"]),
        ({"model.hf": "/nowhere/at/all"}, None, ["model.hf", "/nowhere/at/all", "config.json"]),
        ({"model.preset": "tiny", "model.hf": "x"}, None, ["model.preset", "model.hf", "keep one"]),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(changes: dict[str, Any], ranks: int | None, words: list[str]) -> None:
    table = copy.deepcopy(RUN)
    for changed, value in changes.items():
        section, name = changed.split(".")
        table.setdefault(section, {})[name] = value
    message = message_of(table, ranks)
    for word in words:
        assert word in message


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    section = ModelSection(**MODEL)
    with pytest.raises(UserError, match=r"model\.vocab_size = 99 .* 100 entries.* at least 100"):
        resolve_model(section, 100)
    assert resolve_model(section, 99).vocab_size == 99


@pytest.mark.parametrize(
    ("multiple", "size", "expected"), [(None, 1000, 1024), (None, 1024, 1024), (1, 1001, 1001), (100, 1001, 1100)]
)
def test_a_vocabulary_left_out_is_the_tokenizers_padded(multiple: int | None, size: int, expected: int) -> None:
    values = {k: v for k, v in MODEL.items() if k != "vocab_size"}
    assert resolve_model(ModelSection(**values, vocab_multiple=multiple), size).vocab_size == expected


OWN = {"sliding_window": 0}


@pytest.mark.parametrize(
    ("exception", "words"),
    [
        ({"layers": [2], **OWN}, "layers from 0 to 1; a value that works: layers = \\[0\\]"),
        ({"layers": [], **OWN}, "layers from 0 to 1"),
        ({"every": 3, **OWN}, "there are 2 layers"),
        ({"every": 2, "layers": [0], **OWN}, "either layers or every"),
        (OWN, "either layers or every"),
        ({"layers": [0]}, "states nothing"),
        ({"layers": [0], "positions": "learned"}, "whole model"),
        ({"layers": [0], "attention_chunk": 4}, "some layers model.sliding_window = 8 and model.attention_chunk"),
    ],
    ids=str,
)
def test_an_exception_that_cannot_be_is_refused(exception: dict[str, Any], words: str) -> None:
    stated = MODEL | {"sliding_window": 8, "num_layers": 2}
    with pytest.raises(UserError, match=rf"model\.exceptions: .*{words}"):
        resolve_model(ModelSection(**stated, exceptions=[exception]))


DELTA = {"delta_key_heads": 2, "delta_value_heads": 4, "delta_key_dim": 8, "delta_value_dim": 4}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mixer": "gated_delta", "delta_key_dim": 0}, "model.delta_key_dim is missing.* for example delta_key_dim = 128"),
        ({"mixer": "gated_delta", "delta_key_heads": 3}, "model.delta_key_heads = 3 does not divide model.delta_value_heads = 4"),
        ({"mixer": "gated_delta", "delta_value_heads": 0}, "delta_key_heads = 2 needs model.delta_value_heads > 0"),
        ({"exceptions": [{"layers": [1], "mixer": "gated_delta"}], "delta_value_dim": 0}, "some layers model.delta_value_dim is"),
        ({"mixer": "gated_delta", "mtp_layers": 1}, "MTP modules are known for model.mixer = 'attention' alone"),
        ({"mixer": "gated_delta", "mup_base_hidden_size": 16}, "is not known for model.mixer; what works: mixer"),
        ({"mixer": "kimi_delta"}, 'delta_key_heads = 2 is not model.delta_value_heads = 4, .* works: delta_key_heads = 4'),
        ({"mixer": "kimi_delta", "delta_key_heads": 4}, "delta_key_dim = 8 is not model.delta_value_dim = 4, as model.mixer"),
        ({"mixer": "kimi_delta", "delta_key_dim": 0}, "needs it; for example delta_key_dim = 128, as in Kimi-Linear"),
        ({"mixer": "short_convolution", "block": "python:a:b"}, 'has no mixer; a value that works: mixer = "attention"'),
        ({"mixer": "mamba"}, "mamba"),
    ],
    ids=str,
)  # fmt: skip
def test_a_recurrence_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((UserError, ValueError), match=words):
        resolve_model(ModelSection(**{**MODEL, **DELTA, **changes}))


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        ([{"layers": [1, 3], **OWN}], [{"every": 2, **OWN}]),
        ([{"layers": [3, 1], **OWN}, {"layers": [0], "sliding_window": 8}], [{"every": 2, **OWN}]),
        (
            [{"every": 2, **OWN}, {"layers": [1], "rope_theta": 5.0}],
            [{"layers": [1], "rope_theta": 5.0, **OWN}, {"layers": [3], **OWN}],
        ),
        ([{"layers": [0, 1], **OWN}, {"layers": [0], "sliding_window": 8}], [{"layers": [1], **OWN}]),
        ([{"layers": [2], "sliding_window": 8}], []),
    ],
    ids=str,
)
def test_exceptions_are_written_in_one_way(stated: list[dict[str, Any]], written: list[dict[str, Any]]) -> None:
    """Later ones count, what is common to all is left out, and the model is the same."""
    table = MODEL | {"sliding_window": 8, "num_layers": 4}
    model = resolve_model(ModelSection(**table, exceptions=stated))
    assert [each.model_dump(exclude_none=True) for each in model.exceptions] == [
        {key: tuple(value) if key == "layers" else value for key, value in each.items()} for each in written
    ]
    assert resolve_model(ModelSection(**table, exceptions=written)) == model
