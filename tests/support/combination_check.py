"""Laws that must hold of one combination: sound, equal to one process, declared to the byte, the same run under another layout."""

from pathlib import Path
from typing import Any

import torch

from fourfold.runtime.routers import Routers
from fourfold.runtime.units import build_units
from fourfold.train import state
from tests.support.combinations import Combination, Table, faults_of, spec_of
from tests.support.parity_check import check_bytes, check_values, expected_record
from tests.support.parity_ranks import SAVED, assemble, prepare_rank, run_rank, saved_folder
from tests.support.parity_reference import Record
from tests.support.parity_runs import run_table
from tests.support.peak_errors import check_peaks
from tests.support.ranks import run_on_ranks

TOLERANCE = 1e-9
ROUNDED = 1e-7
"""Low-precision matmuls: there a last bit may move a number to its neighbour in 8 bits."""

MEMORY = 0.01
"""The error of predicted peak memory, as a share of what is not resident."""


def check_combination(each: Combination, folder: Path) -> None:
    """Two steps, the state between them saved; the second step once more from that state under the other layout."""
    for sections, ranks in ((each.sections, each.ranks), (each.other, each.other_ranks)):
        faults = faults_of(spec_of(sections, ranks))
        assert not faults, faults[0]
    table, other = (_table(sections) for sections in (each.sections, each.other))
    expected, tolerance = _expected(table)
    results = run_on_ranks(each.ranks, run_rank, table=table, ranks=each.ranks, save=folder / "first")
    check_bytes(table, results)
    check_values(table, results, tolerance, expected)
    check_memory(each.ranks, table)
    folders = {"start": folder / "first", "save": folder / "second"}
    resumed = run_on_ranks(each.other_ranks, run_rank, table=other, ranks=each.other_ranks, **folders)
    _check_same_bits(*(state_of(saved_folder(folder / name), table) for name in ("first", "second")))
    check_bytes(other, resumed)
    later = Record(expected.losses[SAVED:], expected.norms[SAVED:], *_tensors(expected))
    check_values(other, resumed, tolerance, later)


def _table(sections: Table) -> dict[str, Any]:
    return run_table(**{**sections, "batch": {**sections["batch"], "steps": SAVED + 1}})


def _tensors(record: Record) -> tuple[dict[str, torch.Tensor], ...]:
    return record.gradients, record.parameters, record.biases


def _expected(table: dict[str, Any]) -> tuple[Record, float]:
    """transformers and torch.optim; of low-precision matmuls, which these have not, one rank. And how near is equal."""
    plain = {name: values for name, values in table.items() if name != "faults"}
    if "gemm_dtype" not in table["precision"]:
        return expected_record(plain), TOLERANCE
    rows = table["layout"]["microbatch_sequences"]
    single = {**plain, "layout": {"microbatch_sequences": rows}}
    (alone,) = results = run_on_ranks(1, run_rank, table=single, ranks=1)
    tensors = (assemble(single, results, key, 1) for key in ("gradients", "parameters"))
    biases = {name: torch.from_numpy(bias) for name, bias in alone["biases"].items()}
    return Record(alone["losses"], alone["norms"], *tensors, biases), ROUNDED


def check_memory(ranks: int, table: dict[str, Any]) -> None:
    """With as many experts a token as there are: every rank gets the rows that the prediction says. Where scores are capped, rows
    are one document, as the prediction says: with more of them, fewer scores exist at once."""
    if table["model"].get("attention_softcap"):
        table = {**table, "data": {**table.get("data", {}), "document_mask": False}}
    model, count = table["model"], table["model"].get("num_experts", 0)
    if count:
        every = {"num_expert_groups": 1, "top_groups": 1} if model.get("num_expert_groups") else {}
        model = {**model, "top_k": count, **every}
    check_peaks(ranks, {**table, "model": model, "batch": {**table["batch"], "steps": 1}}, MEMORY)


def state_of(folder: Path, table: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Everything that a checkpoint has, as one rank would have it: weights, states of the optimizer, balancing biases."""
    config, view = prepare_rank(0, {**table, "layout": {}}, 1)
    device = torch.device("cpu")
    units = build_units(view, 0, config.optimizer, device, state.no_fill)
    routers = Routers(view, (), device)
    state.restore(folder, view, units, routers, 0)
    found = {f"{name} weights": unit.master for name, unit in units.items()}
    found |= {f"{name} {key}": each for name, unit in units.items() for key, each in unit.optimizer.state.items()}
    return found | {f"{name} bias": bias for name, bias in routers.biases.items()}


def _check_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), (
            f"{name} changed when it was loaded under another layout and saved again"
        )
