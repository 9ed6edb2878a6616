"""Layouts whose programs are broken at random, and the edits: moved, exchanged, dropped, doubled, altered instructions."""

import random
from typing import Any

from fourfold.program import Instruction, Op, Program, StepSpec
from tests.support.programs import QWEN3_MOE, altered, by_rank, deepseek

TIED = {"model": {"tie_embeddings": True}}
CASES: list[dict[str, Any]] = [
    {"accumulation": 2},
    {"dp_shard": 2, "zero": 0, "accumulation": 2},
    {"dp_shard": 3, "zero": 1, "accumulation": 2},
    {"dp_shard": 2, "zero": 2, "accumulation": 2, **TIED},
    {"dp_shard": 2, "zero": 3, "recompute": "full:1"},
    {"dp_shard": 2, "zero": 3, "accumulation": 2, "prefetch": 3, **TIED},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 0},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "transport": "native"},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "accumulation": 2},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full"},
    {"tp": 2, "sequence_parallel": True, "dp_shard": 2, "zero": 2, "accumulation": 2},
    {"cp": 2, "zero": 1, "sequence_length": 16, "accumulation": 2},
    {"model": QWEN3_MOE, "dp_shard": 2, "tp": 2, "ep": 2, "zero": 2},
    {"pp": 2, "accumulation": 3},
    {"pp": 2, "accumulation": 3, "zero": 1, "dp_shard": 2, **TIED},
    {"pp": 2, "accumulation": 2, "zero": 0, "dp_replicate": 2, **TIED},
    {"pp": 2, "accumulation": 3, "zero": 2, "dp_shard": 2, "schedule": "zb_h1", "recompute": "full:1"},
    {"pp": 2, "accumulation": 2, "zero": 3, "dp_shard": 2, "schedule": "zb_h2", **TIED},
    {"pp": 2, "accumulation": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "model": {"num_layers": 4}},
    {"pp": 2, "accumulation": 3, "schedule": "zb_v", "virtual_stages": 2, "dp_shard": 2, "zero": 2},
    {"pp": 3, "accumulation": 3, "schedule": "zb_h1"},
    {"pp": 2, "model": deepseek(), "dp_shard": 2, "ep": 2, "zero": 1, "accumulation": 2},
    {"model": deepseek(), "dp_shard": 2, "ep": 2, "zero": 2, "accumulation": 3, "overlap_experts": True},
    {"accumulation": 2, "offload": "activations", "offload_optimizer": True, "model": {"num_layers": 4}},
    {"dp_shard": 2, "zero": 3, "offload_optimizer": True, "precision": {"compute": "bf16"}},
    {
        **{"pp": 2, "schedule": "zb_h1", "accumulation": 3, "offload": "activations", "model": {"num_layers": 6}},
        **{"recompute": "full:1", "zero": 1, "dp_shard": 2, "offload_optimizer": True},
    },
    {
        **{"pp": 2, "schedule": "dualpipe_v", "model": {**QWEN3_MOE, "num_layers": 4}, "dp_shard": 2, "ep": 2},
        **{"zero": 1, "accumulation": 4, "overlap_experts": True},
    },
]


def broken(program: Program, rng: random.Random) -> Program:
    """One to three random edits: instructions moved a little or far, exchanged, dropped, doubled, or altered in one word."""
    steps = list(program.instructions)
    for _ in range(rng.choice([1, 1, 2, 3])):
        i = rng.randrange(len(steps))
        near = min(len(steps) - 1, max(0, i + rng.choice([-6, -3, -2, -1, 1, 2, 3, 6])))
        j = rng.choice([near, near, rng.randrange(len(steps))])
        _EDITS[rng.choice(_NAMES)](steps, i, j, rng)
    return program.with_instructions(steps)


def _move(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    steps.insert(j, steps.pop(i))


def _exchange(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    steps[i], steps[j] = steps[j], steps[i]


def _drop(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    del steps[i]


def _double(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    steps.insert(j, steps[i])


def _with_its_wait(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    """Dropped, or moved to another place, together."""
    waits = [k for k, step in enumerate(steps) if step.handle == steps[i].short]
    pair = [steps[k] for k in [i, *waits[:1]]]
    for k in sorted([i, *waits[:1]], reverse=True):
        del steps[k]
    if rng.random() < 0.7:
        at = rng.choice([min(j, len(steps)), rng.randrange(len(steps) + 1)])
        steps[at:at] = pair


def _trade_frees(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    steps[i], steps[j] = steps[i]._replace(frees=steps[j].frees), steps[j]._replace(frees=steps[i].frees)


def _alter(steps: list[Instruction], i: int, j: int, rng: random.Random) -> None:
    step, other = steps[i], steps[j]
    if step.op is Op.WAIT or other.op is Op.WAIT:
        steps[i] = step._replace(frees=())
    elif step.op is Op.REDUCE and len(step.collectives) > 1:
        steps[i] = altered(step, collectives=rng.choice([step.collectives[:1], step.collectives[::-1]]))
    elif step.peer is not None and rng.random() < 0.5:
        steps[i] = step._replace(segment=other.segment) if other.peer is not None else step._replace(peer=0)
    else:
        steps[i] = step._replace(microbatch=other.microbatch) if step.microbatch is not None else other


_EDITS = {
    "move": _move,
    "exchange": _exchange,
    "drop": _drop,
    "double": _double,
    "with its wait": _with_its_wait,
    "frees": _trade_frees,
    "alter": _alter,
}
_NAMES = ["move", "move", "move", "exchange", "drop", "double", "with its wait", "with its wait", "alter", "frees"]


def given_to_ranks(programs: list[Program], mutant: Program, spec: StepSpec, rng: random.Random) -> dict[int, Program]:
    """The mutant to all ranks of its stage, at times to one of them alone, at times with another stage broken too."""
    pipeline = [mutant if program.pp_rank == mutant.pp_rank else program for program in programs]
    fate = rng.random()
    if fate < 0.1:
        chosen = rng.randrange(spec.layout.world_size)
        if spec.layout.coordinates(chosen)["pp"] == mutant.pp_rank:
            return {**by_rank(programs, spec), chosen: mutant}
    elif fate < 0.25:
        other = rng.randrange(len(programs))
        pipeline[other] = broken(pipeline[other], rng)
    return by_rank(pipeline, spec)
