"""One comparison of the runtime with transformers and torch.optim: losses, norms, bytes, every gradient, every parameter."""

import functools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from tests.support.parity_ranks import assemble, prepare_rank, run_rank, worst
from tests.support.parity_reference import Record, reference
from tests.support.parity_runs import run_table
from tests.support.ranks import run_on_ranks


@functools.cache
def _reference(key: str) -> Record:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    try:
        return reference(json.loads(key))
    finally:
        torch.set_num_threads(threads)


def expected_record(table: dict[str, Any], compute: str | None = None) -> Record:
    """The reference's result for the run of this table, in its own or another compute format."""
    precision = {"compute": compute or table["precision"]["compute"]}
    return _reference(json.dumps({**table, "layout": {}, "precision": precision}, sort_keys=True))


def check_parity(
    ranks: int, tolerance: float = 1e-9, fused: str = "", staged: str = "", **sections: dict[str, Any]
) -> None:
    """Raises AssertionError where the runtime differs from the reference, or its traffic from what the programs declare. `fused`:
    the kernels of norms and cross-entropy that segments call, by their name in `fused_operations`. `staged`: a
    device on which all ranks run, by the calls that NCCL would get."""
    table = run_table(**sections)
    prepare_rank(0, table, ranks)  # what cannot run is refused here
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks, fused=fused, staged=staged)
    check_bytes(table, results)
    check_values(table, results, tolerance)


def check_split(
    ranks: int, tolerance: float = 1e-9, fused: str = "", staged: str = "", **sections: dict[str, Any]
) -> None:
    """`check_parity` of two steps, with sizes that tensor, context and expert parallelism divide."""
    check_parity(ranks, tolerance, fused, staged, **divisible(**sections))


def check_single(ranks: int, **sections: dict[str, Any]) -> None:
    """`check_split` in fp32, of one step with an optimizer that does not blow up small gradients."""
    once = {"batch": {"steps": 1}, "optimizer": {"eps": 1e-2}, "precision": {"compute": "fp32"}}
    check_split(ranks, 1e-5, **{**once, **sections})


def divisible(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Sections with a vocabulary of 96, sequences of 16 and two steps where they do not say otherwise."""
    defaults = {"model": {"vocab_size": 96}, "batch": {"sequence_length": 16, "steps": 2}}
    return {name: {**defaults.get(name, {}), **sections.get(name, {})} for name in (*defaults, *sections)}


def check_values(
    table: dict[str, Any], results: list[dict[str, Any]], tolerance: float, expected: Record | None = None
) -> None:
    """Losses and norms of every rank, gradients, parameters and balancing biases of every replica."""
    expected = expected or expected_record(table)
    for result in results:
        assert result["losses"] == pytest.approx(expected.losses, rel=tolerance)
        assert result["norms"] == pytest.approx(expected.norms, rel=tolerance)
    for key in ("gradients", "parameters"):  # of every replica, which `assemble` compares
        error, name = worst(assemble(table, results, key, len(results)), getattr(expected, key))
        assert error < tolerance, f"{key} of {name}: relative error {error:.2e}"
    for result in results:
        for segment, bias in result["biases"].items() if expected.biases else ():
            assert bias == pytest.approx(expected.biases[segment].numpy()), f"balancing bias of {segment}"


def check_bytes(table: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Bytes counted are those declared: on every rank; over all ranks where the router decides who sends them."""
    if table["model"].get("num_experts", 0) == 0:
        for rank, result in enumerate(results):
            _same_bytes(result["sent"], result["declared"], f"on rank {rank}")
    sent, declared = (_total(result[key] for result in results) for key in ("sent", "declared"))
    _same_bytes(sent, declared, "over all ranks")


def _total(ledgers: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for ledger in ledgers:
        total.update(ledger)
    return dict(total)


def _same_bytes(sent: dict[str, int], declared: dict[str, int], where: str) -> None:
    wrong = {
        axes: (sent.get(axes, 0), declared.get(axes, 0))
        for axes in sent.keys() | declared.keys()
        if sent.get(axes, 0) != declared.get(axes, 0)
    }
    assert not wrong, f"bytes counted and bytes declared {where}, by axes: {wrong}"
