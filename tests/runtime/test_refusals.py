"""A run that cannot be right is refused before it starts, in one message that names the key and a value that works."""

import ast
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings

from fourfold.config import UserError
from tests.support.any_layout import any_sections
from tests.support.combinations import Table, complaint, faults_of, spec_of

KEY = r"(?:batch|layout|model|data)\.\w+"
VALUE = r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|-?[\w.]+"
PROPOSALS = (r"values? that works?: (.*)", r"what works: (.*)", r"allowed: (?:at most |up to )?(.*)")
MOST_REPAIRS = 12


def repaired(sections: Table, message: str) -> Table:
    """The sections with what the message says would work put in."""
    result = {name: dict(values) for name, values in sections.items()}
    for key, value in suggestion(message).items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result


def suggestion(message: str) -> dict[str, Any]:
    """Key -> value that a message proposes: of the keys it names there, else of the first key that it names at all."""
    named = re.search(KEY, message)
    assert named, f"no key is named: {message}"
    told = next(filter(None, (re.search(words, message) for words in PROPOSALS)), None)
    assert told, f"no value is proposed: {message}"
    first = re.split(r", or |; ", told[1])[0]
    pairs = re.findall(rf"([a-z][\w.]*) = ({VALUE})", first)
    if not pairs:
        value = re.match(VALUE, first)
        assert value, f"no value is proposed: {message}"
        return {named[0]: _value(value[0])}
    return {key if "." in key else f"{named[0].partition('.')[0]}.{key}": _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check(sections: Table) -> None:
    """Each refusal's own repair removes it; what is not refused at last is proved by the verifier."""
    for _ in range(MOST_REPAIRS):
        message = complaint(sections)
        if message is None:
            faults = faults_of(spec_of(sections))
            assert not faults, faults[0]
            return
        note(message)
        assert "\n" not in message
        sections = repaired(sections, message)
        again = complaint(sections)
        assert again is None or _reason(again) != _reason(message), f"{message}\nas it says, and still: {again}"
    raise AssertionError(f"{MOST_REPAIRS} repairs, and still: {message}")


def _reason(message: str) -> str:
    """The complaint without its numbers and without the proposal."""
    return re.sub(r"\d+|\[[^\]]*\]", "#", message.partition(";")[0])


lenient = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@settings(lenient, max_examples=120)
@given(any_sections())
def test_what_cannot_run_is_refused_with_what_can(sections: Table) -> None:
    _check(sections)


@pytest.mark.sweep
@settings(lenient, max_examples=1000, derandomize=False)
@given(any_sections())
def test_what_cannot_run_is_refused_with_what_can_at_length(sections: Table) -> None:
    _check(sections)


@pytest.mark.parametrize(
    ("layout", "message", "repair"),
    [
        ({"tp": 3}, "layout.tp = 3 does not divide model.num_heads = 4", {"layout.tp": 2}),
        ({"tp": 2, "ep": 2}, "layout.ep = 2 needs a model with experts", {"layout.ep": 1}),
        ({"cp": 4}, "is not a multiple of 2 x layout.cp = 8", {"batch.sequence_length": 24}),
        ({"cp": 2, "cp_method": "Ring"}, "layout.cp_method = 'Ring' is unknown", {"layout.cp_method": "ring"}),
        ({"pp": 5}, "5 stages, but the model has only 4 segments", {"layout.pp": 4}),
        ({"pp": 5, "schedule": "zb_v"}, "5 x 2 = 10 stages, but the model has only 4 segments", {"layout.pp": 2}),
        ({"pp": 2, "schedule": "zb-v"}, "layout.schedule = 'zb-v' is unknown", {"layout.schedule": "zb_v"}),
        ({"pp": 2, "schedule": "zb_v", "virtual_stages": 1}, "layout.virtual_stages = 1", {"layout.virtual_stages": 2}),
        ({"sequence_parallel": True}, "needs layout.tp > 1", {"layout.sequence_parallel": False}),
        ({"dp_shard": 5}, "batch.global_sequences = 12 is not a multiple", {"batch.global_sequences": 15}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_message_and_repair(layout: dict[str, Any], message: str, repair: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        spec_of({"model": {"vocab_size": 96}, "layout": layout})
    assert message in str(caught.value)
    assert suggestion(str(caught.value)) == repair
