"""A run's measured steps beside their prediction: per kind of instruction, per rank, with bytes and memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median

from fourfold.config import UserError
from fourfold.hardware import THIS, Cluster, load_cluster
from fourfold.launch.resolve import ResolvedRun
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shown import resolve_shown
from fourfold.program import Program, digest, lower_pipeline, memory_peak
from fourfold.program.kinds import instruction_kinds, seconds_by_kind
from fourfold.program.liveness import ledger
from fourfold.program.spec import transport_on
from fourfold.simulate.prediction import StepPrediction, check_size, predict_step
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import Simulation
from fourfold.train.measured import KindTime, RankMeasured, read_measured

ROUTED_AXES = frozenset(("ep", "etp"))
"""Along these go the rows of experts, as many as the router sends."""
OUTSIDE = "host and data time"
"""The rest of a step: its batch's preparation, and what the interpreter does between steps."""


@dataclass(frozen=True)
class KindComparison:
    """One kind of instruction in a step of one rank; `predicted` None: no cluster to predict on."""

    kind: str
    count: int
    measured: float
    predicted: float | None

    @property
    def difference(self) -> float:
        return self.measured - self.predicted if self.predicted is not None else 0.0


@dataclass(frozen=True)
class RankComparison:
    """One rank's measurements and predictions. Bytes are always predicted: they need no cluster."""

    measured: RankMeasured
    pp_rank: int
    predicted_seconds: float | None
    predicted_bytes: Mapping[str, int]
    predicted_peak: int
    kinds: tuple[KindComparison, ...]

    @property
    def peak_error(self) -> float | None:
        """How far the predicted peak is off the measured one, as a share of it."""
        measured = self.measured.peak_memory_bytes
        return self.predicted_peak / measured - 1 if measured else None

    @property
    def sent_equal(self) -> bool:
        """Whether the bytes that the rank counted are those that its program declares, on each axis where the router has no say."""
        return _unrouted(self.measured.sent_bytes) == _unrouted(self.predicted_bytes)

    @property
    def routed(self) -> bool:
        """Whether the rank sends rows to experts: predicted as even shares, counted as the router has sent them."""
        return len(_unrouted(self.predicted_bytes)) < sum(size > 0 for size in self.predicted_bytes.values())


def _unrouted(sent: Mapping[str, int]) -> dict[str, int]:
    """Bytes by axes, without those of the experts' rows."""
    return {axes: size for axes, size in sent.items() if size and not ROUTED_AXES.intersection(axes.split("+"))}


@dataclass(frozen=True)
class Difference:
    """A kind of instruction that took longer or shorter than predicted, on average over ranks, and on which rank the most."""

    kind: str
    measured: float
    predicted: float
    share: float
    rank: int
    rank_seconds: float

    @property
    def seconds(self) -> float:
        return self.measured - self.predicted


@dataclass(frozen=True)
class Comparison:
    """The comparison of a run. `step` None: no prediction, for the reason in `why_not`. `notes`: what a reader must know."""

    resolved: ResolvedRun
    ranks: tuple[RankComparison, ...]
    programs: tuple[Program, ...]
    cluster: Cluster | None
    step: StepPrediction | None
    why_not: str
    notes: tuple[str, ...]

    @property
    def measured_seconds(self) -> float:
        """The slowest rank's median step."""
        return max(rank.measured.step_seconds for rank in self.ranks)

    @property
    def predicted_seconds(self) -> float | None:
        return self.step.seconds if self.step is not None else None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return self.predicted_seconds / self.measured_seconds - 1 if self.predicted_seconds is not None else None

    @cached_property
    def kinds(self) -> list[KindComparison]:
        """The mean over ranks, most seconds first; a rank that has no such instruction counts as 0."""
        names = dict.fromkeys(each.kind for rank in self.ranks for each in rank.kinds)
        of = [{each.kind: each for each in rank.kinds} for rank in self.ranks]
        found = []
        for name in names:
            some = [kinds[name] for kinds in of if name in kinds]
            known = self.step is not None
            found.append(
                KindComparison(
                    name,
                    round(mean(each.count for each in some)),
                    sum(each.measured for each in some) / len(of),
                    sum(each.predicted or 0.0 for each in some) / len(of) if known else None,
                )
            )
        return sorted(found, key=lambda each: -max(each.measured, each.predicted or 0.0))

    @cached_property
    def differences(self) -> list[Difference]:
        """The largest first; of those below a thousandth of the step none."""
        if self.step is None:
            return []
        found = []
        for each in self.kinds:
            on = max(
                ((kind.difference, rank) for rank in self.ranks for kind in rank.kinds if kind.kind == each.kind),
                key=lambda pair: abs(pair[0]),
            )
            share = each.difference / self.measured_seconds
            found.append(Difference(each.kind, each.measured, each.predicted or 0.0, share, on[1].measured.rank, on[0]))
        return sorted((d for d in found if abs(d.share) >= 1e-3), key=lambda d: -abs(d.seconds))


def compare(
    folder: RunFolder, cluster_name: str | None = None, software: str | None = None, trust: bool = False
) -> Comparison:
    """Reads what the ranks measured and predicts the same step. `cluster_name` None: the run's own. `trust`: imports the code that
    the run names.

    Raises `UserError` where the folder is no run, or no rank has timed a step.
    """
    config = folder.stage_config(trust)
    everything = read_measured(folder.path)
    if not everything:
        raise UserError(
            f"{folder.path}: no rank has written what it measured yet: that needs two steps and a save; what works: the folder of "
            f"a run that is done, or has saved since it was started"
        )
    latest = max(everything, key=lambda each: each.last_step)
    ranks = [each for each in everything if each.world_size == latest.world_size]
    resolved = resolve_shown(config, transport_on(latest.device))
    if resolved.layout.world_size != latest.world_size:
        raise UserError(
            f"{folder.path}: measured on {latest.world_size} ranks, but its run.toml is for {resolved.layout.world_size}; what "
            f"works: a folder whose last launch was its own"
        )
    programs = tuple(lower_pipeline(resolved.spec, compiled=resolved.compiled))
    cluster, why_not = _cluster(cluster_name or config.cluster.preset, resolved)
    step = None
    if cluster is not None:
        check_size(resolved.spec)
        prices = prices_for(resolved.config, resolved.spec, cluster, software)
        step = predict_step(resolved.spec, prices, resolved.compiled)
    notes = _notes(resolved, ranks, programs, cluster)
    predicted = _predicted_kinds(step) if step is not None else None
    compared = tuple(_rank(each, resolved, programs, step, predicted) for each in ranks)
    return Comparison(resolved, compared, programs, cluster, step, why_not, notes)


def _cluster(name: str, resolved: ResolvedRun) -> tuple[Cluster | None, str]:
    if name == THIS:
        return None, (
            "nothing says how fast this machine is; what works: fourfold calibrate, then fourfold report RUN --cluster "
            "this-machine.toml"
        )
    cluster = load_cluster(name)
    ranks = resolved.layout.world_size
    if cluster.devices < ranks:
        return (
            None,
            f"{cluster.key} has {cluster.devices} devices, the run {ranks} ranks; what works: another --cluster",
        )
    return cluster, ""


def _notes(
    resolved: ResolvedRun, ranks: list[RankMeasured], programs: tuple[Program, ...], cluster: Cluster | None
) -> tuple[str, ...]:
    notes = []
    missing = sorted(set(range(resolved.layout.world_size)) - {each.rank for each in ranks})
    if missing:
        notes.append(
            f"ranks {', '.join(map(str, missing[:8]))}{' ...' if len(missing) > 8 else ''} have measured nothing"
        )
    digests = [digest(program) for program in programs]
    other = [each.rank for each in ranks if each.program != digests[resolved.layout.coordinates(each.rank)["pp"]]]
    if other:
        notes.append(
            f"rank {other[0]} ran another program than this version lowers: what is predicted is not what was run"
        )
    if cluster is not None and not cluster.calibration and ranks[0].device == "cpu":
        notes.append(f"predicted for {cluster.device.name}, measured on a processor: not the same machine")
    return tuple(notes)


def _predicted_kinds(step: StepPrediction) -> list[dict[str, float]]:
    """Seconds of a step by kind of instruction, for every pipeline rank."""

    def sums(simulation: Simulation) -> list[dict[str, float]]:
        found = []
        for program, times in zip(simulation.programs, simulation.times.ranks, strict=True):
            kinds = instruction_kinds(program, simulation.views[0].stages.segments)
            found.append({kind: sum(each) for kind, each in seconds_by_kind(kinds, times.ends).items()})
        return found

    return step.along(sums)


def _rank(
    measured: RankMeasured,
    resolved: ResolvedRun,
    programs: tuple[Program, ...],
    step: StepPrediction | None,
    predicted: list[dict[str, float]] | None,
) -> RankComparison:
    stage = resolved.layout.coordinates(measured.rank)["pp"]
    program = programs[stage]
    inside = sum(each.seconds for each in measured.kinds.values())
    times = {**measured.kinds, OUTSIDE: KindTime(1, max(0.0, measured.step_seconds - inside))}
    own: dict[str, float] = {}
    if predicted is not None and step is not None:
        own = {**predicted[stage], OUTSIDE: max(0.0, step.seconds - sum(predicted[stage].values()))}
    none = KindTime(0, 0.0)
    kinds = [
        KindComparison(kind, time.count, time.seconds, None if step is None else own.get(kind, 0.0))
        for kind, time in {**dict.fromkeys(own, none), **times}.items()
    ]
    return RankComparison(
        measured=measured,
        pp_rank=stage,
        predicted_seconds=step.seconds if step is not None else None,
        predicted_bytes=ledger(program),
        predicted_peak=memory_peak(program).bytes,
        kinds=tuple(sorted(kinds, key=lambda each: -each.measured)),
    )


def furthest(comparison: Comparison, most: int) -> list[RankComparison]:
    """All ranks, or where they are more than `most`, those that are furthest from the median step."""
    if len(comparison.ranks) <= most:
        return list(comparison.ranks)
    middle = median(rank.measured.step_seconds for rank in comparison.ranks)
    return sorted(comparison.ranks, key=lambda rank: -abs(rank.measured.step_seconds - middle))[:most]
