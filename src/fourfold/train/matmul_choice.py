"""Which of a run's fp32 matmuls oneDNN computes: those that the run file or the checkpoint says, or those that it does faster.

On a processor MKL and oneDNN are compared on the run's own matmuls (`runtime.matmuls`), every rank with all others at once. A
library's time is its slowest rank's, so that all ranks take the same. A short run compares nothing: it would gain less than
that costs.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from fourfold.checkpoint.manifest import Manifest
from fourfold.config import RunConfig, RunFailure, UserError, num_steps
from fourfold.flash import remembered
from fourfold.model.operations import Operations
from fourfold.program import Program
from fourfold.runtime.matmuls import (
    KINDS,
    Clock,
    LibrarySeconds,
    MatmulCounts,
    by_onednn,
    faster_by_onednn,
    measure,
    of_slowest,
    problem_of_onednn,
    problem_of_shapes,
    processor_clock,
    step_matmuls,
    total_flops,
)
from fourfold.train.backend_choice import AgreeingRanks, recorded_choice

WORTHWHILE_FLOPS = 5e12
"""FLOPs of a rank's matmuls in a run, some minute of a core, from which on libraries are compared."""
NONE = "none"
"""In a checkpoint: oneDNN computed nothing."""


class ChosenMatmuls(NamedTuple):
    """The kinds that oneDNN computes, and in words why these; no words where there was no choice."""

    kinds: tuple[str, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        return f"oneDNN ({', '.join(self.kinds)})" if self.kinds else "PyTorch's own library"

    @property
    def recorded(self) -> str:
        return ", ".join(self.kinds) or NONE

    def among(self, operations: Operations) -> Operations:
        """The operations, with these kinds by oneDNN."""
        return by_onednn(operations, self.kinds) if self.kinds else operations


def choose_matmuls_for_run(
    config: RunConfig, program: Program, context: AgreeingRanks, newest: Path | None, copy: Manifest | None
) -> ChosenMatmuls:
    """The choice at the start of a training. `newest`, `copy`: the checkpoint, and the copy in memory, that it may go on from."""
    applies = context.device.type == "cpu" and config.precision.compute == "fp32"
    named = config.run.matmul_backend
    if not applies and named == "onednn":
        raise UserError(
            f'run.matmul_backend = "onednn", but this run computes in {config.precision.compute} on {context.device.type}; '
            f'allowed: fp32 on a processor; a value that works: "auto"'
        )
    if not applies or named == "torch":
        return ChosenMatmuls()
    recorded = ""
    if newest is not None or copy is not None:
        recorded = context.tell(_recorded(newest, copy) if context.rank == 0 else "", 0)
    matmuls, steps = step_matmuls(program), num_steps(config)
    return choose_matmuls(
        matmuls,
        context,
        named,
        recorded,
        _cache_file(),
        processor_clock,
        total_flops(matmuls) * steps >= WORTHWHILE_FLOPS,
    )


def choose_matmuls(
    matmuls: MatmulCounts, ranks: AgreeingRanks, named: str, recorded: str, cache: Path, clock: Clock, measures: bool
) -> ChosenMatmuls:
    """The same on every rank, each of which calls this. `named`: by the run file, `auto` or `onednn`; `recorded`: by its
    checkpoint, or empty; `measures`: whether this rank's part of the run is long enough. Raises `UserError` where the named one
    cannot be taken, and `RunFailure` where the recorded one cannot."""
    measures = ranks.most([float(measures)]) == [1.0]
    if not (named == "onednn" or recorded or measures):
        return ChosenMatmuls()
    problem = problem_of_onednn() or problem_of_shapes(matmuls)
    first = ranks.least(ranks.rank if problem is not None else ranks.world_size)
    if first < ranks.world_size:
        problem = ranks.tell(problem or "", first)
        if named == "onednn":
            raise UserError(f'run.matmul_backend = "onednn": {problem}; a value that works: "auto"')
        if recorded not in ("", NONE):
            raise RunFailure(
                f"the checkpoint was made with matmuls by oneDNN ({recorded}), which cannot be taken here: {problem}; go on "
                f'from it with run.matmul_backend = "torch", which rounds otherwise'
            )
        return ChosenMatmuls()
    if named == "onednn":
        return ChosenMatmuls(KINDS, "as the run file says")
    if recorded:
        return ChosenMatmuls(tuple(kind for kind in KINDS if kind in recorded.split(", ")), "as before the checkpoint")
    seconds = of_slowest(_known(matmuls, cache, clock), ranks.most)
    times = ", ".join(f"{kind} {1000 * pair.torch:.1f} and {1000 * pair.onednn:.1f}" for kind, pair in seconds.items())
    return ChosenMatmuls(faster_by_onednn(seconds), f"ms by PyTorch's own library and by oneDNN: {times}")


def _known(matmuls: MatmulCounts, cache: Path, clock: Clock) -> dict[str, LibrarySeconds]:
    """This rank's times, remembered or measured."""
    key = _key(matmuls)
    names = [f"{kind}, {library}" for kind in KINDS if matmuls[kind] for library in LibrarySeconds._fields]
    known = remembered.recall(cache, key, names)
    if known is None:
        found = measure(matmuls, clock)
        known = {f"{kind}, {name}": getattr(found[kind], name) for kind in KINDS for name in LibrarySeconds._fields}
        remembered.remember(cache, key, {name: known[name] for name in names})
    return {
        kind: LibrarySeconds(*(known.get(f"{kind}, {name}", 0.0) for name in LibrarySeconds._fields)) for kind in KINDS
    }


def _recorded(newest: Path | None, copy: Manifest | None) -> str:
    """The kinds by oneDNN that a checkpoint was made with; `NONE` where it does not say, or cannot be read."""
    found = copy.info.get("matmuls") if copy is not None else recorded_choice(newest, "matmuls")
    return found if isinstance(found, str) and found else NONE


def _cache_file() -> Path:
    """`fourfold/matmuls.json` in the user's cache."""
    return remembered.default_path().with_name("matmuls.json")


def _key(matmuls: MatmulCounts) -> str:
    """All that the times depend on: the processor, its threads, the matmuls, versions."""
    shapes = [
        f"{times} x {kind} {gemm.rows} {gemm.columns} {gemm.inner}"
        for kind in KINDS
        for gemm, times in sorted(matmuls[kind].items(), key=str)
    ]
    return ", ".join(
        [remembered.processor(), f"{torch.get_num_threads()} threads", *shapes, f"torch {torch.__version__}"]
    )
