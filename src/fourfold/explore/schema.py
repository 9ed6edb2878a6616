"""The type of each document. The page's TypeScript is generated of them; tests hold documents to them."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fourfold.config import RunFailure, UserError
from fourfold.config.whole_file import bounded
from fourfold.explore.accuracy.document import AccuracyDocument, AccuracyRunDocument
from fourfold.explore.block_types import BlockDocument
from fourfold.explore.board.document import BoardDocument
from fourfold.explore.board.moves.document import MovesDocument
from fourfold.explore.board.runs import BOARD_RUN, BoardRunDocument
from fourfold.explore.by_hand.document import HandDocument
from fourfold.explore.catalog_types import CatalogDocument
from fourfold.explore.cluster_types import AttentionDocument, ClusterDocument, GroupsDocument, RooflineDocument
from fourfold.explore.collective import CollectiveDocument
from fourfold.explore.pipeline import PipelineDocument, ProgramRow, SlotsDocument, TraceDocument
from fourfold.explore.task_types import JudgementDocument, TaskDocument, TasksDocument
from fourfold.report.page_file import NOT_BUILT, is_built, write_page
from fourfold.results.plan import PlanDocument
from fourfold.results.prediction import AdviceDocument, EstimateDocument, SimulationDocument
from fourfold.results.record import json_schema_of, record
from fourfold.results.run import ComparisonDocument, LayersDocument, MetricsDocument, RunDocument


@record
class TextsDocument:
    """A setup as a run file, a command line and Python."""

    run_file: str
    command: str
    python: str


@record
class ModelDocument:
    """The keys of `[model]` that a config.json states."""

    overrides: dict[str, Any]


@record
class ProgramDocument:
    """`fourfold show --json`."""

    model: dict[str, Any]
    num_parameters: int
    layout: dict[str, Any]
    transport: str
    kind: str
    pp_rank: int
    program: list[ProgramRow]
    totals: dict[str, Any]


@record
class VerificationDocument:
    """`fourfold show --verify --json`."""

    model: dict[str, Any]
    num_parameters: int
    layout: dict[str, Any]
    transport: str
    sound: bool
    proofs: list[dict[str, Any]]
    faults: list[dict[str, Any]]


SCHEMAS: dict[str, type] = {
    "simulate": SimulationDocument,
    "advice": AdviceDocument,
    "estimate": EstimateDocument,
    "plan": PlanDocument,
    "catalog": CatalogDocument,
    "collective": CollectiveDocument,
    "block": BlockDocument,
    "cluster": ClusterDocument,
    "groups": GroupsDocument,
    "roofline": RooflineDocument,
    "attention": AttentionDocument,
    "texts": TextsDocument,
    "model": ModelDocument,
    "program": ProgramDocument,
    "verify": VerificationDocument,
    "pipeline": PipelineDocument,
    "slots": SlotsDocument,
    "board": BoardDocument,
    "moves": MovesDocument,
    "by_hand": HandDocument,
    "tasks": TasksDocument,
    "task": JudgementDocument,
    "own_task": TaskDocument,
    "accuracy": AccuracyDocument,
    "accuracy_run": AccuracyRunDocument,
    "run": RunDocument,
    "metrics": MetricsDocument,
    "layers": LayersDocument,
    "comparison": ComparisonDocument,
    "trace": TraceDocument,
    BOARD_RUN: BoardRunDocument,
}
"""The type of each document, by the name in its address."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON schema of a document."""
    return json_schema_of(SCHEMAS[name])


KINDS = {"best": "plan", "time_shares": "simulate"}
"""A key that only one kind of document has, and the kind."""


def saved_document(path: Path) -> dict[str, Any]:
    """The document by its kind, `simulate` or `plan`. Raises `UserError` where the file holds neither."""
    works = (
        "what works: the file that fourfold simulate RUN --json or fourfold plan RUN --json printed, or a run's folder"
    )
    try:
        found = json.loads(bounded(path), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: is no JSON document: {error!s:.200}; {works}") from None
    kind = next((kind for key, kind in KINDS.items() if isinstance(found, dict) and key in found), None)
    if kind is None:
        raise UserError(f"{path}: is neither a plan nor a simulation; {works}")
    try:
        TypeAdapter(SCHEMAS[kind]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{path}: {where}: {first['msg']}; written by another version of fourfold? {works}") from None
    return {kind: found}


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def saved_page(path: Path, out: Path | None = None) -> Path:
    """Writes the page of a plan or a simulation that `--json` saved; its file, by default beside it. Raises `UserError` and
    `RunFailure`."""
    if not is_built():
        raise RunFailure(NOT_BUILT)
    page = out if out is not None else path.with_suffix(".html")
    write_page(page, path.stem, saved_document(path))
    return page
