"""The cost of an optimizer that orthogonalizes, beside AdamW's: who computes the matrices of each kind of unit, and why."""

from fourfold.config.optimizers import AdamWSection
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.program.capabilities import unit_bytes
from fourfold.program.muon.owners import placement
from fourfold.program.spec import StepSpec
from fourfold.report.units import format_bytes, seconds_text
from fourfold.simulate.step import mean_seconds
from fourfold.simulate.summary import StepSummary


def matrix_lines(summary: StepSummary) -> list[str]:
    """Nothing for an elementwise optimizer."""
    simulation = summary.step.simulation
    spec, prices = simulation.spec, simulation.prices
    if not spec.optimizer.orthogonalizes:
        return []
    views = simulation.views
    moved = AdamWSection.spec.update_bytes(spec.compute, spec.master, spec.gradients)
    adamw = sum(prices.memory(flat.shard_numel * moved) for view in views for flat in view.flats.values()) / len(views)
    own = mean_seconds(summary.spent).get("optimizer", 0.0)
    lines = [f"optimizer  {seconds_text(own)} a rank; AdamW's update would take {seconds_text(adamw)}"]
    known = set()
    for flat in (flat for view in views for flat in view.flats.values() if placement(spec, flat).work.items):
        text = _placed(spec, flat)
        if text not in known:
            known.add(text)
            lines.append(f"           {flat.unit}: {text}")
    return lines


def _placed(spec: StepSpec, flat: FlatLayout) -> str:
    plan = placement(spec, flat)
    spread = f"{plan.spread_work.flops / 1e9:.4g} GFLOP"
    if not plan.owners:
        why = "owner ranks save less than sending results costs"
        if spec.optimizer.placement == "shard":
            why = "optimizer.placement = shard"
        elif not spec.layout.active(("dp_replicate", "dp_shard", "cp", "tp")):
            why = "there is one rank"
        return f"every rank orthogonalizes what it has parts of, {spread} on the busiest: {why}"
    why = (
        "saves more than sending results costs" if spec.optimizer.placement == "auto" else "optimizer.placement = owner"
    )
    size = format_bytes(unit_bytes(spec, "homes", flat))
    return (
        f"owner ranks over {axes_name(plan.owners)}, {plan.work.flops / 1e9:.4g} GFLOP on the busiest in place of {spread}, "
        f"{size} of results gathered: {why}"
    )
