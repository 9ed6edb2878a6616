"""A back end's kernels may stand in a module whose library is missing: it is imported when the first of them is used."""

import copy
import math

import pytest

from fourfold.kernels.backend import Backend, LazyModule
from fourfold.model import torch_operations


def test_a_library_that_is_missing_is_missed_where_it_is_used() -> None:
    lazy = LazyModule("no_such_library")
    assert not hasattr(lazy, "__len__")
    assert vars(copy.copy(lazy)) == vars(lazy)
    with pytest.raises(ImportError, match="no_such_library"):
        lazy.forward()


def test_one_that_is_there_is_looked_up_once() -> None:
    lazy = LazyModule("math")
    assert lazy.sqrt is math.sqrt
    assert vars(lazy)["sqrt"] is math.sqrt


def test_a_back_end_replaces_its_members_alone() -> None:
    operations = Backend[object]("own", {"linear": math.sqrt}).operations
    assert operations.linear is math.sqrt
    assert {name for name, each in vars(torch_operations).items() if vars(operations)[name] is not each} == {"linear"}
