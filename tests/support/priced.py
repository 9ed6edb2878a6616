"""Runs of presets on nodes of H100, and their prices with the kernels that nothing was fitted on."""

from typing import Any

from fourfold.config.run_file import parse_run
from fourfold.cost import Prices
from fourfold.cost.fitted import Fitted
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.work import Work
from fourfold.program import StepSpec, rank_view, resolve_step
from fourfold.program.stage_map import stage_map

SOFTWARE = SoftwareProfile(contention=0.0)


def lowered(preset: str, vocab_size: int, **layout: Any) -> StepSpec:
    """In bf16, 64 sequences of 4,096 tokens a step."""
    table = {
        "model": {"preset": preset},
        "batch": {"global_sequences": 64, "sequence_length": 4096, "steps": 1},
        "layout": {"sequence_parallel": False, **layout},
        "precision": {"compute": "bf16"},
    }
    config = parse_run(table)
    model = resolve_model(config.model, vocab_size)
    return resolve_step(config, model, resolve_layout(config, model), "native")


def prices_of(spec: StepSpec, software: SoftwareProfile = SOFTWARE, **others: Any) -> Prices:
    kernels = Fitted({}, {}, {}).kernels("any", software)
    cluster = load_cluster(f"dgx-h100:{spec.layout.world_size}")
    return Prices(cluster, spec.layout, **{"kernels": kernels, "software": software, **others})


def forward_of(spec: StepSpec, segment: str = "b1") -> Work:
    return rank_view(spec).footprint(stage_map(spec).segments[segment]).forward
