"""A comparison with the reference that must fail, since the runtime is broken on purpose, and pass when it is not."""

import functools
import json
from typing import Any

import pytest

from tests.support.parity_check import check_bytes, check_parity, check_values
from tests.support.parity_ranks import run_rank
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks
from tests.support.runtime_mutants import MUTANTS


def run_mutant(rank: int, mutant: str, **kwargs: Any) -> dict[str, Any]:
    """`run_rank` with the runtime broken in one way."""
    with MUTANTS[mutant]():
        return run_rank(rank, **kwargs)


def check_mutant(name: str, ranks: int, **sections: dict[str, Any]) -> None:
    """Raises where the broken runtime's values pass (for a mutant of bytes: its traffic), or the whole one's do not."""
    _check_unbroken(ranks, json.dumps(sections, sort_keys=True))
    table = run_table(**sections)
    results = run_on_ranks(ranks, run_mutant, mutant=name, table=table, ranks=ranks)
    with pytest.raises(AssertionError):
        _check(name, table, results)


def _check(name: str, table: dict[str, Any], results: list[dict[str, Any]]) -> None:
    if name.startswith("bytes"):
        check_bytes(table, results)
    else:
        check_values(table, results, 1e-6)


@functools.cache
def _check_unbroken(ranks: int, sections: str) -> None:
    check_parity(ranks, **json.loads(sections))
