"""Programs that were edited, run by real ranks in fp64 over memory that holds NaN until it is written."""

from collections.abc import Mapping
from typing import Any

from fourfold.program import Program, StepSpec
from fourfold.program.text import from_text, to_text
from tests.support.parity_check import check_values
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, QWEN3_MOE, run_table
from tests.support.poison import poisoned_memory
from tests.support.programs import deepseek
from tests.support.ranks import run_on_ranks

FAMILIES = ((deepseek(), DEEPSEEK_V3), ({"top_k": 2, "qk_norm": True}, QWEN3_MOE), ({"top_k": 2}, MIXTRAL))
"""Dimensions of a case's model, and the family that transformers has of this kind."""


def run_of(case: Mapping[str, Any]) -> tuple[dict[str, Any], StepSpec]:
    """The table of a run of one step under a case's layout, and its step. `case`: arguments of `make_spec`."""
    layout = {
        key: value
        for key, value in case.items()
        if key not in ("model", "accumulation", "transport", "precision", "checked")
    }
    length = layout.pop("sequence_length", 16)
    degree = layout.get("dp_replicate", 1) * layout.get("dp_shard", 1)
    table = run_table(
        model={"vocab_size": 96, **_family(dict(case.get("model", {})))},
        batch={"global_sequences": degree * case.get("accumulation", 1), "sequence_length": length, "steps": 1},
        layout={"sequence_parallel": False, **layout},
        optimizer={"name": case.get("optimizer", "adamw")},
        faults={
            "checksum_every_steps": int(case.get("checked", False)),
            "replay_every_steps": int(case.get("checked", False)),
        },
    )
    ranks = degree * layout.get("pp", 1) * layout.get("tp", 1) * layout.get("cp", 1)
    return table, prepare_rank(0, table, ranks)[1].spec


def _family(model: dict[str, Any]) -> dict[str, Any]:
    for dimensions, family in FAMILIES:
        if dimensions.items() <= model.items():
            return {**family, **({"num_layers": model["num_layers"]} if "num_layers" in model else {})}
    return model


def run_edited(rank: int, table: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """One rank's part with its program of these, as texts."""
    with poisoned_memory():
        return run_rank(rank, table, len(texts), program=from_text(texts[rank]))


def difference(table: dict[str, Any], programs: Mapping[int, Program]) -> str | None:
    """How the step of these programs differs from that of transformers in one process."""
    try:
        texts = [to_text(programs[rank]) for rank in range(len(programs))]
        results = run_on_ranks(len(texts), run_edited, table=table, texts=texts)
        check_values(table, results, 1e-9)
    except AssertionError as problem:
        return str(problem) or "other losses or norms"
    return None
