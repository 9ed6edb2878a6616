"""One comparison of the runtime with transformers and torch.optim: losses, norms, bytes, every gradient, every parameter."""

import functools
import json
from collections import Counter
from typing import Any

import pytest
import torch

from tests.support.parity import Record, assemble, reference, run_rank, run_table, worst
from tests.support.ranks import run_on_ranks


@functools.cache
def _reference(key: str) -> Record:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    try:
        return reference(json.loads(key))
    finally:
        torch.set_num_threads(threads)


def check_parity(ranks: int, tolerance: float = 1e-9, mutant: str | None = None, **sections: dict[str, Any]) -> None:
    """Raises AssertionError where the runtime, broken by `mutant` if one is named, differs from the reference."""
    table = run_table(**sections)
    reference_table = {**table, "layout": {}, "precision": {"compute": table["precision"]["compute"]}}
    expected = _reference(json.dumps(reference_table, sort_keys=True))
    if mutant is None:
        results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    else:
        from tests.support.runtime_mutants import run_mutant

        results = run_on_ranks(ranks, run_mutant, mutant=mutant, table=table, ranks=ranks)
    for result in results:
        if table["model"].get("num_experts", 0) == 0:
            assert result["sent"] == result["declared"], f"bytes counted differ from bytes declared: {result['sent']}"
        assert result["losses"] == pytest.approx(expected.losses, rel=tolerance)
        assert result["norms"] == pytest.approx(expected.norms, rel=tolerance)
    _check_totals(results)
    for key in ("gradients", "parameters"):  # of every replica, which `assemble` compares
        error, name = worst(assemble(table, results, key, ranks), getattr(expected, key))
        assert error < tolerance, f"{key} of {name}: relative error {error:.2e}"
    for result in results:
        for segment, bias in result["biases"].items() if expected.biases else ():
            assert bias == pytest.approx(expected.biases[segment].numpy()), f"balancing bias of {segment}"


def _check_totals(results: list[dict[str, Any]]) -> None:
    """Over all ranks the bytes counted are those declared, where the router decides who sends them too."""
    sent, declared = Counter[str](), Counter[str]()
    for result in results:
        sent.update(result["sent"])
        declared.update(result["declared"])
    assert sent == declared, (
        f"bytes counted over all ranks differ from bytes declared: {sent - declared}, {declared - sent}"
    )
