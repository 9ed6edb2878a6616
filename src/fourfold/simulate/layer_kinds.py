"""The different layers of a model: which they are, and what each costs a microbatch. Hybrids and windows make several."""

from dataclasses import dataclass
from itertools import groupby

from fourfold.layout.mesh import Recompute
from fourfold.model.spec import Segment
from fourfold.program.footprints import Footprints
from fourfold.simulate.step import Simulation


@dataclass(frozen=True)
class LayerCosts:
    """Layers that compute alike under one recompute policy. `numbers`: which of the model's they are; `words`: what is theirs.
    Seconds and bytes are of one layer and microbatch on one device; `kept_bytes` wait for backward; `parameters` of a whole layer,
    before any rank has a part of it."""

    numbers: tuple[int, ...]
    words: str
    recompute: str
    parameters: int
    forward_seconds: float
    backward_seconds: float
    kept_bytes: int

    @property
    def ranges(self) -> str:
        """Numbers of its layers, runs of neighbours as one: `0-4, 6-10`."""
        runs = [[n for _, n in run] for _, run in groupby(enumerate(self.numbers), lambda pair: pair[1] - pair[0])]
        return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def layer_costs(simulation: Simulation) -> tuple[LayerCosts, ...]:
    """Every kind of layer, by its first. MTP modules are none."""
    spec, durations = simulation.spec, simulation.durations
    footprints = Footprints(spec.model, spec.shape)
    kinds: dict[tuple[int, Recompute], list[Segment]] = {}
    for segment, policy in zip(spec.segments, spec.layout.recompute, strict=True):
        if segment.kind == "block" and not segment.depth:
            kinds.setdefault((segment.layer_type, policy), []).append(segment)
    found = []
    for (_, policy), segments in kinds.items():
        first = segments[0]
        footprint = footprints.of(first, policy)
        forward = durations.work(footprint.forward).seconds
        again = forward if policy == "full" else 0.0
        found.append(
            LayerCosts(
                numbers=tuple(each.layer for each in segments if each.layer is not None),
                words=first.layer_kind.words if first.layer_kind is not None else "your own block",
                recompute=policy,
                parameters=first.numel,
                forward_seconds=forward,
                backward_seconds=durations.work(footprint.backward).seconds + again,
                kept_bytes=footprint.saved_bytes,
            )
        )
    return tuple(found)
