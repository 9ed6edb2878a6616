"""The step of one of the small layouts, as devices would run it."""

from typing import Any

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import StepSpec, resolve_step
from tests.rehearse.layouts import LAYOUTS, Sections
from tests.support.parity_runs import run_table


def layout_spec(name: str) -> tuple[StepSpec, Any]:
    """The step over NCCL, and its optimizer's section."""
    return sections_spec(*LAYOUTS[name])


def sections_spec(ranks: int, sections: Sections) -> tuple[StepSpec, Any]:
    """The step of sections of a run table over NCCL, and its optimizer's section."""
    config = parse_run(run_table(**sections))
    model = resolve_model(config.model)
    return resolve_step(config, model, resolve_layout(config, model, ranks), "native"), config.optimizer
