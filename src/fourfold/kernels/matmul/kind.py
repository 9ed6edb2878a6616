"""Matmuls in fp32 on a processor: by kind of matmul PyTorch's own library, MKL, or oneDNN where it is right and faster.

The two are compared on the run's own matmuls. A short run compares nothing: it would gain less than that costs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from fourfold.checkpoint.manifest import Manifest
from fourfold.config import RunFailure, UserError, num_steps
from fourfold.kernels import remembered
from fourfold.kernels.backend import Backend
from fourfold.kernels.choose import (
    AgreeingRanks,
    Chosen,
    Clock,
    Contest,
    Examine,
    KernelKind,
    RunStart,
    Trial,
    agreed_problem,
    choose,
    recorded_choice,
)
from fourfold.kernels.matmul.libraries import (
    KINDS,
    LibrarySeconds,
    MatmulCounts,
    faster_by_onednn,
    measure,
    problem_of_onednn,
    problem_of_shapes,
    processor_clock,
    step_matmuls,
    total_flops,
)
from fourfold.model.counts import WORTHWHILE_FLOPS
from fourfold.model.torch_onednn import MATMULS

NONE = "none"
"""In a checkpoint: oneDNN computed nothing."""


def mixture(kinds: tuple[str, ...]) -> Backend[MatmulCounts]:
    """The back end whose matmuls of these kinds are oneDNN's, the others PyTorch's."""
    members = {name: function for kind in kinds for name, function in MATMULS[kind].items()}
    title = f"oneDNN ({', '.join(kinds)})" if kinds else "PyTorch's own library"
    return Backend(", ".join(kinds) or NONE, members, title=title)


TORCH, ONEDNN = mixture(()), mixture(KINDS)
BACKENDS = {"torch": TORCH, "onednn": ONEDNN}
"""By name in a run file."""
MIXTURES = {each.name: each for number in range(len(KINDS) + 1) for each in map(mixture, combinations(KINDS, number))}
"""By name in a checkpoint."""


@dataclass(frozen=True)
class MatmulContest(Contest[MatmulCounts]):
    """A contest whose kinds of matmuls are each decided for themselves."""

    matmuls: MatmulCounts

    @property
    def key(self) -> str:
        """The processor, its threads, the matmuls, versions."""
        shapes = [
            f"{times} x {kind} {gemm.rows} {gemm.columns} {gemm.inner}"
            for kind in KINDS
            for gemm, times in sorted(self.matmuls[kind].items(), key=str)
        ]
        return ", ".join(
            [remembered.processor(), f"{torch.get_num_threads()} threads", *shapes, f"torch {torch.__version__}"]
        )

    @property
    def names(self) -> Collection[str]:
        return [name for name, *_ in _names(KINDS)]

    @property
    def own_names(self) -> Collection[str]:
        return [name for name, *_ in _names(self._own_kinds)]

    @property
    def _own_kinds(self) -> list[str]:
        return [kind for kind in KINDS if self.matmuls[kind]]

    def measure(self, examine: Examine[MatmulCounts], clock: Clock) -> dict[str, Trial]:
        found = measure(self.matmuls, clock)
        return {name: Trial(getattr(found[kind], library)) for name, kind, library in _names(self._own_kinds)}

    def ranked(self, seconds: Mapping[str, float]) -> Iterator[tuple[Backend[MatmulCounts], str]]:
        """One: each kind's faster library."""
        pairs = {
            kind: LibrarySeconds(*(seconds[f"{kind}, {each}"] for each in LibrarySeconds._fields)) for kind in KINDS
        }
        times = ", ".join(
            f"{kind} {1000 * pair.torch:.1f} and {1000 * pair.onednn:.1f}" for kind, pair in pairs.items()
        )
        yield mixture(faster_by_onednn(pairs)), f"ms by PyTorch's own library and by oneDNN: {times}"


def _names(kinds: Iterable[str]) -> list[tuple[str, str, str]]:
    """The names of times, each with its kind and its library."""
    return [(f"{kind}, {library}", kind, library) for kind in kinds for library in LibrarySeconds._fields]


class MatmulKind(KernelKind[MatmulCounts]):
    """The one kind that is compared on a processor, where a run is long enough to gain by it."""

    def choose(self, start: RunStart) -> Chosen[MatmulCounts]:
        config, ranks = start.config, start.ranks
        applies = ranks.device.type == "cpu" and config.precision.compute == "fp32"
        named = config.run.matmul_backend
        if not applies and named == "onednn":
            raise UserError(
                f'run.matmul_backend = "onednn", but this run computes in {config.precision.compute} on {ranks.device.type}; '
                f'allowed: fp32 on a processor; a value that works: "auto"'
            )
        if not applies or named == "torch":
            return Chosen(TORCH)
        recorded = ""
        if start.newest is not None or start.copy is not None:
            recorded = ranks.tell(_recorded(start.newest, start.copy) if ranks.rank == 0 else "", 0)
        matmuls = step_matmuls(start.program)
        is_long = total_flops(matmuls) * num_steps(config) >= WORTHWHILE_FLOPS
        return choose_matmuls(matmuls, ranks, named, recorded, self.cache, processor_clock, is_long)


KIND = MatmulKind("matmuls", "matmuls", "matmul_backend", "matmuls.json", BACKENDS)


def choose_matmuls(
    matmuls: MatmulCounts, ranks: AgreeingRanks, named: str, recorded: str, cache: Path, clock: Clock, measures: bool
) -> Chosen[MatmulCounts]:
    """`choose.choose`. `named`: by the run file, `auto` or `onednn`; `recorded`: by its checkpoint, or empty; `measures`: whether
    this rank's part of the run is long enough. Where oneDNN cannot be taken, raises `UserError` if the run file names it, and
    `RunFailure` if the checkpoint does."""
    measures = ranks.most([float(measures)]) == [1.0]
    if not (named == "onednn" or recorded or measures):
        return Chosen(TORCH)
    problem = agreed_problem(lambda: problem_of_onednn() or problem_of_shapes(matmuls), ranks)
    if problem is None:
        contest = MatmulContest(KIND, {**BACKENDS, **MIXTURES}, lambda backend: None, matmuls)
        kinds = tuple(kind for kind in KINDS if kind in recorded.split(", "))
        before = mixture(kinds).name if recorded else ""
        return choose(contest, ranks, named, before, cache, clock, measures)
    if named == "onednn":
        raise UserError(f'run.matmul_backend = "onednn": {problem}; a value that works: "auto"')
    if recorded not in ("", NONE):
        raise RunFailure(
            f"the checkpoint was made with matmuls by oneDNN ({recorded}), which cannot be taken here: {problem}; go on "
            f'from it with run.matmul_backend = "torch", which rounds otherwise'
        )
    return Chosen(TORCH)


def _recorded(newest: Path | None, copy: Manifest | None) -> str:
    """The kinds by oneDNN that a checkpoint was made with; `NONE` where it does not say, or cannot be read."""
    found = copy.info.get(KIND.name) if copy is not None else recorded_choice(newest, KIND.name)
    return found if isinstance(found, str) and found else NONE
