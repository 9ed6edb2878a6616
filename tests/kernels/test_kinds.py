"""The one list of kinds: what a run file may name, what a checkpoint and an event call them."""

from typing import Any, get_args

import pytest
import torch

from fourfold.config.schema import RunSection
from fourfold.kernels.choose import Chosen, KernelKind
from fourfold.kernels.kinds import KINDS, Choices
from fourfold.model import torch_operations
from fourfold.model.torch_attention import default_backend
from fourfold.report.run_state import describe_event


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_run_file_can_name_every_back_end_and_no_other(kind: KernelKind[Any]) -> None:
    assert set(get_args(RunSection.model_fields[kind.option].annotation)) == {"auto", *kind.backends}


def test_every_choice_of_a_run_file_is_of_a_kind() -> None:
    """A key that ends in `_backend` names the back end of a part of a step."""
    keys = {key for key in RunSection.model_fields if key.endswith("_backend")}
    assert keys == {kind.option for kind in KINDS}


@pytest.mark.parametrize("key", ["work", "name", "option", "file"])
def test_no_two_kinds_share_a_name(key: str) -> None:
    assert len({getattr(kind, key) for kind in KINDS}) == len(KINDS)


def test_what_computes_where_nothing_is_compared() -> None:
    """The operations that segments call anyway."""
    for kind in KINDS:
        ours = {name: getattr(torch_operations, name) for name in kind.default.members}
        assert kind.default.members == ours or kind.name == "attention"
    assert KINDS[0].default.members["attend"] is default_backend(torch.device("cpu"), torch.float32).attend


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_back_ends_replace_operations_that_segments_call(kind: KernelKind[Any]) -> None:
    for backend in kind.backends.values():
        assert set(backend.members) <= set(vars(torch_operations))


def test_kinds_replace_other_operations() -> None:
    """So that the choice of one cannot undo that of another."""
    members = [{name for each in kind.backends.values() for name in each.members} for kind in KINDS]
    assert sum(map(len, members)) == len(set().union(*members))


def test_choices_are_recorded_and_told_by_the_names_of_their_kinds() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    assert kinds.keys() >= {"attention", "norms", "loss", "pointwise", "matmuls"}, "keys of checkpoints that exist"
    chosen = {name: Chosen(list(kind.backends.values())[-1], "it is Tuesday") for name, kind in kinds.items()}
    choices = Choices({**chosen, "norms": Chosen(kinds["norms"].default)})
    assert list(choices.recorded) == list(kinds)
    assert choices.recorded["matmuls"] == "forward, input gradient, weight gradient"
    events = dict(choices.events())
    assert list(events) == [name for name in kinds if name != "norms"]
    assert events["matmuls"]["backend"] == "oneDNN (forward, input gradient, weight gradient)"
    assert events["loss"] == {"backend": "triton", "message": "it is Tuesday"}
    operations = choices.operations
    assert operations.norms is None
    assert operations.losses is not None
    assert operations.linear.__module__ == "fourfold.model.torch_onednn"
    assert operations.int64 is torch.int64


def test_an_event_of_each_kind_says_what_by_which_and_why() -> None:
    told = {kind.name: describe_event({"event": kind.name, "backend": "one", "message": "it is"}) for kind in KINDS}
    assert told == {kind.name: f"{kind.work} by one: it is" for kind in KINDS}
