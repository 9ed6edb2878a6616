"""Random combinations of everything that a run has, legal by construction, from a seed; a person's own schedule.

A combination is drawn axis by axis: `FAMILY_AXES` say what is trained (model, data, optimizer, format of matmuls, checks),
`LAYOUT_AXES` how it is laid out on so many ranks. Two layouts of one family train the same run. A new axis is one function
that draws its keys, and its place in one of the tuples.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fourfold.config import UserError, parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import StepSpec, lower_pipeline, resolve_step, verify
from fourfold.program.fault import Fault
from tests.support.parity_runs import DEEPSEEK_V3, MIXTURES, run_table
from tests.support.reference_optimizers import REFERENCES
from tests.support.schedules import with_stages

Table = dict[str, dict[str, Any]]
Axis = Callable[[random.Random, Table], Table]
"""Draws keys of some sections. The table has what was drawn before, and with it the degrees of the mesh in `layout`."""
DENSE: dict[str, dict[str, Any]] = {
    "llama": {"num_layers": 2},
    "qwen2": {"num_layers": 4, "qkv_bias": True, "num_kv_heads": 1},
    "qwen3": {"num_layers": 6, "qk_norm": True, "head_dim": 16},
}
MTP: dict[str, dict[str, Any]] = {
    "llama, two MTP modules": {"num_layers": 2, "mtp_layers": 2, "mtp_loss": 0.5},
    "deepseek_v3, an MTP module": {**DEEPSEEK_V3, "mtp_layers": 1},
}
MODELS = {**DENSE, **{name: {**model, "num_layers": 4} for name, model in MIXTURES.items()}, **MTP}
OWN = "python:tests.support.combinations:last_in_first_out"
SCHEDULES = {virtual: (*with_stages(virtual), OWN) for virtual in (1, 2, 3)}
METHODS = ("ring", "all_gather", "ulysses", "ring+ulysses:2")
SEQUENCES, LENGTH = 24, 24
FEATURES = {
    "mxfp8": {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "ffn_size": 128},
    "fp8-block": {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64, "ffn_size": 256},
}
"""Sizes of which two ranks of `tp` have multiples of what a recipe takes together."""
LENGTHS = {"mxfp8": 128, "fp8": 128, "fp8-block": 512}


def last_in_first_out(rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[str]:
    """All forwards, all input gradients in reverse, then all weight gradients, in text form."""
    stages = [s for s in range(num_ranks * virtual_stages) if _rank_of(s, num_ranks) == rank]
    microbatches = range(num_microbatches)
    yield from (f"F{s}.{m}" for s in stages for m in microbatches)
    yield from (f"I{s}.{m}" for s in reversed(stages) for m in reversed(microbatches))
    yield from (f"W{s}.{m}" for s in stages for m in microbatches)


def _rank_of(stage: int, num_ranks: int) -> int:
    return num_ranks - 1 - stage % num_ranks


def _stage_ranks(num_ranks: int, virtual_stages: int) -> list[int]:
    return [_rank_of(stage, num_ranks) for stage in range(num_ranks * virtual_stages)]


last_in_first_out.stage_ranks = _stage_ranks  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Combination:
    """A run on so many ranks, by its sections, and another layout of it on as many as that one needs."""

    ranks: int
    sections: Table
    other_ranks: int
    other: Table

    def __str__(self) -> str:
        """Sections of the combination, and the other layout."""
        stated = {name: section for name, section in self.sections.items() if section}
        return f"{self.ranks} ranks {stated}; then {self.other_ranks} ranks {self.other['layout']}"


def combination(seed: int, ranks: int, other_ranks: int, model: dict[str, Any] | None = None) -> Combination:
    """The combination of this seed, the same on every machine. `model`: what is trained; None: one of `MODELS`."""
    chance = random.Random(f"{seed} {ranks} {other_ranks}")
    axes = FAMILY_AXES if model is None else (_sized(model), _documents, _optimizer, _checks)
    while True:
        family = _drawn(chance, axes, {"batch": {"global_sequences": SEQUENCES, "sequence_length": LENGTH}})
        layouts = [_legal_layout(chance, family, count) for count in (ranks, other_ranks)]
        if layouts[0] is not None and layouts[1] is not None:
            return Combination(ranks, layouts[0], other_ranks, layouts[1])


def _legal_layout(chance: random.Random, family: Table, ranks: int, tries: int = 20) -> Table | None:
    """A layout of the family on so many ranks; None where so many tries found none that can run."""
    for _ in range(tries):
        table = _drawn(chance, LAYOUT_AXES, {**family, "layout": _degrees(chance, ranks)})
        if complaint(table, ranks) is None:
            return table
    return None


def _drawn(chance: random.Random, axes: tuple[Axis, ...], table: Table) -> Table:
    for axis in axes:
        drawn = axis(chance, table)
        table = {**table, **{name: {**table.get(name, {}), **keys} for name, keys in drawn.items()}}
    return table


# What is trained


def _model(chance: random.Random, table: Table) -> Table:
    model = {**MODELS[chance.choice(sorted(MODELS))], "vocab_size": chance.choice([96, 96, 99])}
    return {"model": {**model, "tie_embeddings": chance.random() < 0.4}}


def _sized(model: dict[str, Any]) -> Axis:
    """One model, with a vocabulary that is divisible or not."""
    return lambda chance, table: {"model": {**model, "vocab_size": chance.choice([96, 96, 99])}}


def _documents(chance: random.Random, table: Table) -> Table:
    return {"data": {"document_mask": chance.random() < 0.5}}


def _optimizer(chance: random.Random, table: Table) -> Table:
    name = chance.choice(["adamw", *REFERENCES])
    return {"optimizer": {"name": name, **({"lr": 0.05, **REFERENCES[name].settings} if name != "adamw" else {})}}


def _low_precision(chance: random.Random, table: Table) -> Table:
    """Sizes that no layout cuts where numbers share a scale; MLA has none, since its sizes are stated one by one."""
    if chance.random() > 0.2 or table["model"].get("key_value_rank"):
        return {}
    recipe = chance.choice(sorted(LENGTHS))
    experts = {"moe_ffn_size": 64} if "num_experts" in table["model"] else {}
    large = recipe == "fp8-block"
    return {
        "model": {**FEATURES["fp8-block" if large else "mxfp8"], **experts},
        "batch": {"sequence_length": LENGTHS[recipe], "global_sequences": 4 if large else 12},
        "precision": {"gemm_dtype": recipe, **({"gemm_gradients": "e5m2"} if chance.random() < 0.5 else {})},
    }


def _checks(chance: random.Random, table: Table) -> Table:
    """Every step compares replicas, or computes twice."""
    keys = ("checksum_every_steps", "replay_every_steps")
    return {"faults": {key: 1 for key in keys if chance.random() < 0.15}}


FAMILY_AXES: tuple[Axis, ...] = (_model, _documents, _optimizer, _low_precision, _checks)


# How it is laid out


def _degrees(chance: random.Random, ranks: int) -> dict[str, Any]:
    """The ranks' prime factors, each given to an axis."""
    degrees: dict[str, Any] = dict.fromkeys(("pp", "dp_replicate", "dp_shard", "cp", "tp"), 1)
    factor = 2
    while ranks > 1:
        if ranks % factor:
            factor += 1
            continue
        degrees[chance.choice(sorted(degrees))] *= factor
        ranks //= factor
    return degrees


def _data(chance: random.Random, table: Table) -> Table:
    order = chance.choice(["pp", "pp", "dp_replicate", "dp"])
    return {"layout": {"zero": chance.randrange(4), "prefetch": chance.randrange(3), "outermost": order}}


def _pipeline(chance: random.Random, table: Table) -> Table:
    pp, segments = table["layout"]["pp"], table["model"]["num_layers"] + 2
    if pp == 1:
        return {}
    virtual = chance.choice([v for v in SCHEDULES if pp * v <= segments] or [1])
    layout = {"virtual_stages": virtual, "schedule": chance.choice(SCHEDULES[virtual])}
    if chance.random() < 0.3 and pp * virtual <= segments:
        cuts = sorted(chance.sample(range(1, segments), pp * virtual - 1))
        layout["segments_per_stage"] = [b - a for a, b in zip([0, *cuts], [*cuts, segments], strict=True)]
    return {"layout": layout}


def _context_and_tensor(chance: random.Random, table: Table) -> Table:
    layout: dict[str, Any] = {}
    if table["layout"]["cp"] > 1:
        layout["cp_method"] = chance.choice(METHODS)
    if table["layout"]["tp"] > 1:
        layout["sequence_parallel"] = chance.random() < 0.5
    return {"layout": layout}


def _experts(chance: random.Random, table: Table) -> Table:
    if not table["model"].get("num_experts"):
        return {}
    spread = table["layout"]["dp_shard"] * table["layout"]["cp"] * table["layout"]["tp"]
    ep = chance.choice(_divisors(spread))
    etp = chance.choice(_divisors(spread // ep))
    return {"layout": {"ep": ep, "etp": etp, "overlap_experts": ep > 1 and chance.random() < 0.5}}


def _microbatches(chance: random.Random, table: Table) -> Table:
    """One scale a tensor is that of a microbatch, which then has the same size under every layout."""
    alike = table.get("precision", {}).get("gemm_dtype") == "fp8"
    return {"layout": {"microbatch_sequences": 2 if alike else chance.choice([4, 3, 2, 1])}}


def _recompute(chance: random.Random, table: Table) -> Table:
    each = [chance.choice(["none", "selective", "full"]) for _ in range(table["model"]["num_layers"])]
    return {"layout": {"recompute": chance.choice(["none", "none", "selective", "full", "full:1", each])}}


def _offload(chance: random.Random, table: Table) -> Table:
    activations = chance.choice(["none", "none", "activations", "activations:1"])
    return {"layout": {"offload": activations, "offload_optimizer": chance.random() < 0.3}}


LAYOUT_AXES: tuple[Axis, ...] = (_data, _pipeline, _context_and_tensor, _experts, _microbatches, _recompute, _offload)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


# What is refused, and what the verifier says


def complaint(sections: Table, ranks: int | None = None) -> str | None:
    """The error that refuses the run before it starts; None: nothing. Other errors than a person's are raised."""
    try:
        spec_of(sections, ranks)
    except UserError as error:
        return str(error)
    return None


def spec_of(sections: Table, ranks: int | None = None) -> StepSpec:
    config = parse_run(run_table(**sections))
    model = resolve_model(config.model)
    return resolve_step(config, model, resolve_layout(config, model, ranks)).at_step(0, config.faults, config.metrics)


def faults_of(spec: StepSpec) -> list[Fault]:
    """The verifier's faults in the programs of all ranks."""
    stages = lower_pipeline(spec)
    layout = spec.layout
    return verify({rank: stages[layout.coordinates(rank)["pp"]] for rank in range(layout.world_size)}, spec)
