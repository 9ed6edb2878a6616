"""The groups of a rank, connected before anything is allocated: made, called once, and where it is asked for, measured."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from fourfold.config import RunConfig
from fourfold.program import Program, StepSpec
from fourfold.runtime.collectives import AxisGroup, make_groups
from fourfold.runtime.first_calls import AnswerDeadline, first_calls, kinds_of
from fourfold.runtime.links import TorchLink
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.preflight import MESSAGE_BYTES, link_rates, measured_names, measures, ring_seconds, stated_levels
from fourfold.runtime.progress import ProgressBoard, read_positions
from fourfold.train.metrics import append_event
from fourfold.train.session import RankContext
from fourfold.train.state import run_data


def connected_groups(
    config: RunConfig,
    spec: StepSpec,
    programs: Sequence[Program],
    context: RankContext,
    board: ProgressBoard,
    out: Path,
) -> dict[str, AxisGroup]:
    """This rank's groups. `programs`: its own. All ranks call it together. Raises `RunFailure` where others do not answer."""
    names, rank, device = groups_of(spec), context.rank, context.device
    answers = AnswerDeadline(device, board.record, partial(read_positions, out))
    groups = make_groups(spec.layout, rank, names, config.run.timeout_seconds, wait_for=answers.wait_for)
    if spec.layout.world_size > 1:
        world = TorchLink(dist.group.WORLD, device.type == "cuda")
        answers.connect(first_calls(groups, names, spec.layout, rank, kinds_of(programs), device, world))
    if measures(config.run.preflight, device, context.world_size):
        _preflight(spec, groups, context, out)
    return groups


def _preflight(spec: StepSpec, groups: dict[str, AxisGroup], context: RankContext, out: Path) -> None:
    """Measures, and says what it found."""
    names, device = measured_names(groups_of(spec), spec.layout), context.device
    own = torch.tensor(ring_seconds(groups, names, spec.layout, device), dtype=torch.float64, device=device)
    of_all = torch.zeros(context.world_size, len(names), dtype=torch.float64, device=device)
    of_all[context.rank] = own
    dist.all_reduce(of_all)
    if context.rank == 0:
        levels = stated_levels(run_data(out).get("levels"))
        rates = link_rates(of_all.tolist(), names, spec.layout, MESSAGE_BYTES[device.type], levels)
        links = {each.axes: each.bytes_per_second for each in rates}
        append_event(out, "preflight", message="; ".join(each.text() for each in rates), bytes_per_second=links)
