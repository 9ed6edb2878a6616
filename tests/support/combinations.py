"""Random combinations of everything that a layout has, legal by construction; layouts of any kind; a person's own schedule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from fourfold.config import UserError, parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import StepSpec, lower_pipeline, resolve_step, verify
from fourfold.program.fault import Fault
from tests.support.parity_check import divisible
from tests.support.parity_runs import MIXTURES, run_table
from tests.support.schedules import with_stages

Table = dict[str, dict[str, Any]]
DENSE: dict[str, dict[str, Any]] = {
    "llama": {"num_layers": 2},
    "qwen2": {"num_layers": 4, "qkv_bias": True, "num_kv_heads": 1},
    "qwen3": {"num_layers": 6, "qk_norm": True, "head_dim": 16},
}
MODELS = {**DENSE, **{name: {**model, "num_layers": 4} for name, model in MIXTURES.items()}}
OWN = "python:tests.support.combinations:last_in_first_out"
SCHEDULES = {virtual: (*with_stages(virtual), OWN) for virtual in (1, 2)}
METHODS = ("ring", "all_gather", "ulysses", "ring+ulysses:2")
SEQUENCES, LENGTH = 24, 16


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
    """A run on so many ranks, by its sections."""

    ranks: int
    sections: Table


@st.composite
def combinations(draw: st.DrawFn, ranks: int) -> Combination:
    """Any model on exactly so many ranks, divided among the axes in any way that is legal."""
    name = draw(st.sampled_from(sorted(MODELS)))
    degrees = _degrees(draw, ranks)
    layout: dict[str, Any] = {**degrees, "zero": draw(st.integers(0, 3)), "prefetch": draw(st.integers(0, 2))}
    if degrees["pp"] > 1:
        layout["virtual_stages"] = virtual = draw(st.integers(1, 2))
        layout["schedule"] = draw(st.sampled_from(SCHEDULES[virtual]))
    if degrees["cp"] > 1:
        layout["cp_method"] = draw(st.sampled_from(METHODS))
    if degrees["tp"] > 1:
        layout["sequence_parallel"] = draw(st.booleans())
    if name in MIXTURES:
        held = degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
        layout["ep"] = draw(st.sampled_from(_divisors(held)))
        layout["etp"] = draw(st.sampled_from(_divisors(held // layout["ep"])))
        layout["overlap_experts"] = layout["ep"] > 1 and draw(st.booleans())
    layout["microbatch_sequences"] = draw(st.sampled_from([3, 4, 2, 1]))
    layout["recompute"] = draw(st.sampled_from(["none", "none", "selective", "full", "full:1"]))
    layout["offload"] = draw(st.sampled_from(["none", "activations", "activations:1"]))
    layout["offload_optimizer"] = draw(st.booleans())
    sections = divisible(
        model={**MODELS[name], **({"tie_embeddings": True} if draw(st.booleans()) else {})},
        batch={"global_sequences": SEQUENCES, "sequence_length": LENGTH},
        data={"document_mask": draw(st.booleans())},
        layout=layout,
    )
    assume(complaint(sections, ranks) is None)
    return Combination(ranks, sections)


def _degrees(draw: st.DrawFn, ranks: int) -> dict[str, int]:
    """The ranks' prime factors (all 2), each given to an axis."""
    degrees = dict.fromkeys(("pp", "dp_replicate", "dp_shard", "cp", "tp"), 1)
    while ranks > 1:
        degrees[draw(st.sampled_from(sorted(degrees)))] *= 2
        ranks //= 2
    return degrees


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


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
    return resolve_step(config, model, resolve_layout(config, model, ranks))


def faults_of(spec: StepSpec) -> list[Fault]:
    """The verifier's faults in the programs of all ranks."""
    stages = lower_pipeline(spec)
    layout = spec.layout
    return verify({rank: stages[layout.coordinates(rank)["pp"]] for rank in range(layout.world_size)}, spec)


@st.composite
def any_sections(draw: st.DrawFn) -> Table:
    """Layouts and batches without regard to what can run."""

    def some(**choices: st.SearchStrategy[Any]) -> dict[str, Any]:
        """Each key in some of the cases."""
        return {key: draw(values) for key, values in choices.items() if draw(st.booleans())}

    small = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8])
    recompute = st.sampled_from(["none", "full", "selective", "full:2", "full:9", "some", "selective:1"])
    schedules = [*SCHEDULES[1], *SCHEDULES[2], "1F1B", "zb-v", "nothing", "file:/nowhere.txt"]
    layout = some(
        pp=small,
        schedule=st.sampled_from(schedules),
        virtual_stages=st.sampled_from([1, 2, 2, 3, 9]),
        segments_per_stage=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        dp_replicate=small,
        dp_shard=small,
        zero=st.integers(0, 3),
        cp=small,
        cp_method=st.sampled_from([*METHODS, "ring+ulysses:3", "ring+ulysses:0", "Ring", "ring+ulysses:4"]),
        tp=small,
        sequence_parallel=st.booleans(),
        ep=small,
        etp=small,
        overlap_experts=st.booleans(),
        microbatch_sequences=small,
        recompute=st.one_of(recompute, st.lists(st.sampled_from(["none", "full", "all"]), min_size=1, max_size=3)),
    )
    model = {**MODELS[draw(st.sampled_from(sorted(MODELS)))], **some(vocab_size=st.sampled_from([96, 99, 7]))}
    batch = some(global_sequences=st.integers(1, 30), sequence_length=st.integers(1, 40))
    return {"model": model, "batch": batch, "layout": layout}
