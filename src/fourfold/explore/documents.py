"""The documents that the page asks for. Each function takes a request's body and gives what `--json` of a command prints.

They run in the processes of `pool.py`; `report` tells how far a search is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from fourfold.api.options import PlanOptions, names
from fourfold.api.planning import plan
from fourfold.api.programs import RunProgram
from fourfold.api.simulation import simulate
from fourfold.api.verification import Verification
from fourfold.config import parse_run
from fourfold.config.errors import shortened
from fourfold.explore.accuracy.document import accuracy_document, accuracy_run
from fourfold.explore.attention import ATTENTION_KEYS, attention_document
from fourfold.explore.block import OWN as BLOCK_KEYS
from fourfold.explore.block import block_document
from fourfold.explore.board.document import board_document
from fourfold.explore.board.moves.document import moves_document
from fourfold.explore.by_hand.document import hand_document
from fourfold.explore.catalog import catalog_document
from fourfold.explore.collective import collective_document
from fourfold.explore.machine import GROUPS_OWN, cluster_document, groups_document, priced_setup
from fourfold.explore.pipeline import OWN, pipeline_document, slots_document, trace_document
from fourfold.explore.roofline import roofline_document
from fourfold.explore.setup import Malformed, Setup, read_setup
from fourfold.explore.tasks.document import judged, task_document, tasks_document
from fourfold.explore.tasks.task import read_own_task, task_named
from fourfold.explore.texts import texts_of
from fourfold.huggingface import resolve_model
from fourfold.huggingface.config_json import parse_config
from fourfold.report.format_outlook import advice_record
from fourfold.results.record import document
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.simulate.stage_times import estimate_makespan

Body = Mapping[str, Any]
Report = Callable[[str, float], None]
PLAN_OPTIONS = ("objective", "explain", "keep", "budget", "memory_share", "for_", "deadline_days")
COLLECTIVE_KEYS = {
    "kind": Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"],
    "algorithm": Literal["ring", "tree", "hierarchical", "pairwise", "naive"],
    "ranks": Annotated[int, Field(ge=2, le=16)],
    "per_node": Annotated[int, Field(ge=1, le=16)],
    "buffer_bytes": Annotated[float, Field(ge=1, le=1e15)],
}


def simulation(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold simulate --json`; with memory over the step where `memory` is true, and with what flows through the levels of the
    network where `flows` is."""
    setup, own = _divided(body, {"memory": bool, "flows": bool})
    found = simulate(setup.run_input, setup.stated, **setup.options)
    return found.to_json(memory_curves=own.get("memory", False), advice=False, flows=own.get("flows", False))


def advice(body: Body, report: Report) -> dict[str, Any]:
    """The changes that help the step of a setup, each simulated."""
    setup, _ = _divided(body, {})
    found = simulate(setup.run_input, setup.stated, **setup.options)
    told = advice_record(found.advice, found.summary)
    return document(told) if told is not None else {"changes": [], "limit": None}


def estimate(body: Body, report: Report) -> dict[str, Any]:
    """The time of the schedule alone, by which the planner sorts layouts. A person sees it at once while the step of a
    long pipeline is being simulated."""
    setup, _ = _divided(body, {})
    resolved, _, prices = priced_setup(setup)
    seconds, batch = estimate_makespan(resolved.spec, prices), resolved.config.batch
    return {
        "step_seconds": seconds,
        "tokens_per_second": batch.global_sequences * batch.sequence_length / seconds,
    }


def program(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold show --json` of a pipeline rank."""
    setup, own = _divided(body, {"pp_rank": int, "kind": str})
    return _compiled(setup, own.get("kind", "train")).to_json(own.get("pp_rank", 0))


def verification(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold show --verify --json`, for the cluster's transport."""
    setup, _ = _divided(body, {})
    return Verification.of_run(_compiled(setup, "train").resolved).to_json()


def pipeline(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold show --timeline --json` with what each rank waits for, for the pipeline that the page states."""
    return pipeline_document(*_divided(body, OWN))


def slots(body: Body, report: Report) -> dict[str, Any]:
    """The program of a pipeline rank, by the slots of that timeline."""
    return slots_document(*_divided(body, {**OWN, "pp_rank": int}))


def board(body: Body, report: Report) -> dict[str, Any]:
    """An order that a person builds, judged by the verifier and priced by the simulator."""
    return board_document(body)


def moves(body: Body, report: Report) -> dict[str, Any]:
    """Programs whose instructions a person moves, judged by the verifier and priced by the simulator."""
    return moves_document(body)


def by_hand(body: Body, report: Report) -> dict[str, Any]:
    """A collective that a person builds, judged and priced."""
    return hand_document(body)


def trace(body: Body, report: Report) -> dict[str, Any]:
    """Timeline of the pipeline as a trace for Perfetto, with flows between ranks."""
    return trace_document(*_divided(body, OWN))


def searched(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold plan --json`. Layout keys hold the search where the request states them."""
    setup, own = _divided(body, dict.fromkeys(PLAN_OPTIONS, object))
    options = {key: value for key, value in setup.options.items() if key in names(PlanOptions)}
    return plan(setup.run_input, setup.stated, **options, **own, progress=report).to_json()


def texts(body: Body, report: Report) -> dict[str, Any]:
    """The setup as a run file, a command line and Python."""
    setup, _ = _divided(body, {})
    return texts_of(setup)


def model(body: Body, report: Report) -> dict[str, Any]:
    """The keys of `[model]` that a Hugging Face `config.json` states."""
    _, own = _divided(body, {"config": dict})
    if "config" not in own:
        raise Malformed('config is missing; what works: {"config": {"model_type": "llama", ...}}')
    plain = to_jsonable_python(parse_config(own["config"]), exclude_none=True)
    table = {"model": plain, "batch": {"global_sequences": 1, "sequence_length": 1}}
    resolve_model(parse_run(table, source="config.json").model)
    return {"overrides": {f"model.{key}": each for key, each in plain.items()}}


def collective(body: Body, report: Report) -> dict[str, Any]:
    """A collective step by step on the cluster's links."""
    setup, own = _divided(body, COLLECTIVE_KEYS)
    name = _cluster(setup, [key for key in COLLECTIVE_KEYS if key not in own and key != "algorithm"], "ranks = 8, ...")
    where = (name, own["ranks"], own["per_node"])
    return collective_document(own["kind"], own.get("algorithm"), *where, own["buffer_bytes"])


def block(body: Body, report: Report) -> dict[str, Any]:
    """The pieces of a block's weights and activations that each rank holds, and the collectives between."""
    return block_document(*_divided(body, BLOCK_KEYS))


def cluster(body: Body, report: Report) -> dict[str, Any]:
    """The levels of a cluster."""
    setup, _ = _divided(body, {})
    return cluster_document(_cluster(setup, [], 'cluster = "dgx-h100:64"'), setup.price)


def groups(body: Body, report: Report) -> dict[str, Any]:
    """The groups of a layout on its cluster."""
    return groups_document(*_divided(body, GROUPS_OWN))


def roofline(body: Body, report: Report) -> dict[str, Any]:
    """The kernels of a step on their device's roofline."""
    return roofline_document(_divided(body, {})[0])


def attention(body: Body, report: Report) -> dict[str, Any]:
    """Bytes that attention moves, tile by tile."""
    setup, own = _divided(body, ATTENTION_KEYS)
    missing = [key for key in ATTENTION_KEYS if key not in own and key != "fast_bytes"]
    return attention_document(_cluster(setup, missing, "tokens = 8192, heads = 32, ..."), own)


def tasks(body: Body, report: Report) -> dict[str, Any]:
    """All tasks."""
    return tasks_document()


def task(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold simulate --json` of a learner's setup, and what the task makes of it."""
    setup, own = _divided(body, {"task": str, "text": str})
    if len(own) != 1:
        raise Malformed(
            'task is missing; what works: {"task": "eight-copies", ...}, or "text": the TOML of a task of one\'s own'
        )
    return judged(read_own_task(own["text"]) if "text" in own else task_named(own["task"]), setup)


def own_task(body: Body, report: Report) -> dict[str, Any]:
    """A person's own task, from its TOML."""
    _, own = _divided(body, {"text": str})
    if "text" not in own:
        raise Malformed('text is missing; what works: {"text": "id = ..."}, the TOML of a task')
    return task_document(read_own_task(own["text"]))


def accuracy(body: Body, report: Report) -> dict[str, Any]:
    """All published runs that ship, as measured and as predicted."""
    return accuracy_document()


def accuracy_of_run(body: Body, report: Report) -> dict[str, Any]:
    """A published run as a set-up, and the engine's prediction for it."""
    _, own = _divided(body, {"id": str})
    if "id" not in own:
        raise Malformed('id is missing; what works: {"id": "llm_c:0"}')
    return accuracy_run(own["id"])


def comparison(body: Body, report: Report) -> dict[str, Any]:
    """`fourfold report --json` of the run that the command line named: the server states its folder, never a request."""
    from fourfold.explore.run import run_comparison  # it takes what reads folders and starts processes

    return run_comparison(Path(body["folder"]))


def catalog(body: Body, report: Report) -> dict[str, Any]:
    """The choices that a person has."""
    return catalog_document()


DOCUMENTS: Mapping[str, Callable[[Body, Report], dict[str, Any]]] = {
    "simulate": simulation,
    "advice": advice,
    "estimate": estimate,
    "program": program,
    "verify": verification,
    "texts": texts,
    "model": model,
    "catalog": catalog,
    "collective": collective,
    "block": block,
    "cluster": cluster,
    "groups": groups,
    "roofline": roofline,
    "attention": attention,
    "pipeline": pipeline,
    "slots": slots,
    "board": board,
    "moves": moves,
    "by_hand": by_hand,
    "tasks": tasks,
    "task": task,
    "own_task": own_task,
    "accuracy": accuracy,
    "accuracy_run": accuracy_of_run,
    "comparison": comparison,
    "trace": trace,
    "plan": searched,
}
"""By the name in the address, `/api/NAME`. A new view adds its function here."""


def encoded(name: str, body: Body, report: Report) -> bytes:
    """The document as JSON. Raises `UserError`."""
    with without_collection():
        return json.dumps(DOCUMENTS[name](body, report), allow_nan=False).encode()


def _compiled(setup: Setup, kind: Any) -> RunProgram:
    return RunProgram.of(setup.run_input, setup.stated, cluster=setup.cluster, kind=kind)


def _cluster(setup: Setup, missing: Sequence[str], example: str) -> str:
    """The cluster's name. Raises `Malformed` where it or one of a document's own keys is missing."""
    if missing or setup.cluster is None:
        raise Malformed(f"{', '.join(missing) or 'cluster'} is missing; what works: {example}")
    return setup.cluster


def _divided(body: Body, own: Mapping[str, Any]) -> tuple[Setup, dict[str, Any]]:
    """The setup, and the keys that a document adds to it, by their types. Raises `Malformed`."""
    added = {key: body[key] for key in own if key in body}
    for key, value in added.items():
        try:
            TypeAdapter(own[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise Malformed(f"{key} = {shortened(value)}: {error.errors()[0]['msg']}") from None
    return read_setup({key: value for key, value in body.items() if key not in added}), added
