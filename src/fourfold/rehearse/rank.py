"""One rank's step, rehearsed: the executor, its program and its microbatches, on a device that is not there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fourfold.config.errors import error_text
from fourfold.config.optimizers import OptimizerSection
from fourfold.data.batches import Batch
from fourfold.layout import FlatLayout
from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.model.recorder.operations import even_counts
from fourfold.program import Program, memory_peak
from fourfold.program.view import RankView
from fourfold.rehearse.journal import GroupCall, Journal, RehearsalFault, Wait
from fourfold.rehearse.kernels import DeviceKernels
from fourfold.rehearse.link import RehearsedLinks, rehearsed_host_link
from fourfold.rehearse.pretend import DEVICE, PretendedDevice
from fourfold.rehearse.shapes import KnownShapes
from fourfold.rehearse.streams import Streams
from fourfold.runtime.collectives import bind_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.step import StepTimeout
from fourfold.runtime.units import build_units, share_parameters, watch_units
from fourfold.train.feed import RotaryTables, RowFeed, feed_tables, rank_feed

DOCUMENTS = 3
"""Documents of a row where attention stays inside them."""


@dataclass(frozen=True)
class RankRehearsal:
    """One rank's step. `resident_bytes`: allocated before the step; `peak_bytes`: the most allocated within it, and
    as the program predicts it. `launches`: operations given to the device; a collective is none. `joins`: by instruction, how
    often the computing stream waits for a communicator. `num_calls`: of communicators; `calls`: those of the step that
    ran, which may have had fewer microbatches. `sent_bytes`: by axes."""

    rank: int
    pp_rank: int
    instructions: int
    resident_bytes: int
    peak_bytes: int
    predicted_peak_bytes: int
    launches: int
    copies: int
    copied_bytes: int
    num_calls: int
    waits: tuple[Wait, ...]
    calls: tuple[GroupCall, ...]
    joins: Mapping[str, int]
    sent_bytes: dict[str, int]

    @property
    def communicators(self) -> int:
        """Communicators that the step uses."""
        return len({(call.link, call.peer, call.upwards) for call in self.calls})


@dataclass
class PretendedRank:
    """A rank on a device that is not there: its executor, and what watches it."""

    view: RankView
    rank: int
    executor: Executor
    journal: Journal
    streams: Streams
    kernels: DeviceKernels
    tables: RotaryTables
    names: list[str]

    def feed(self) -> RowFeed:
        return _feed(self.view, self.rank, self.tables)

    def follow(self, program: Program) -> None:
        """Names the instructions of the program that runs next."""
        self.names[:] = [step.short for step in program.instructions]

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Within the block an error of torch is a fault of the instruction that runs, and so is a stream that is not joined."""
        try:
            yield
        except RehearsalFault:
            raise
        except (RuntimeError, NotImplementedError, ValueError, IndexError, StepTimeout) as error:
            raise self.journal.fault(error_text(error)) from error
        left = self.streams.left()
        if left is not None:
            raise self.journal.fault(f"`{left}` is not joined at the end of the step")


@contextmanager
def pretended_rank(
    view: RankView, rank: int, optimizer: OptimizerSection, shapes: KnownShapes, fixed: bool = False
) -> Iterator[PretendedRank]:
    """The rank, on its device within the block. `fixed`: as for a step that is captured."""
    spec, journal, streams = view.spec, Journal(rank), Streams()
    device = PretendedDevice(journal)
    kernels = DeviceKernels(journal, device, streams, shapes)
    with ExitStack() as modes:
        modes.enter_context(device)
        groups = bind_groups(spec.layout, rank, groups_of(spec), RehearsedLinks(journal, streams), {})
        units = build_units(view, rank, optimizer, DEVICE, _fill)
        tables = feed_tables(spec, DEVICE)
        modes.enter_context(kernels)
        share_parameters(spec, units, groups)
        names: list[str] = []

        def begin(counter: int) -> None:
            """Checks memory after one instruction, and names the next."""
            kernels.after_instruction()
            journal.instruction = names[counter] if counter < len(names) else "end"

        executor = Executor(
            *(view, units, groups, optimizer, DEVICE, rank, begin),
            operations=_operations(journal),
            side=streams.on_side,
            link=rehearsed_host_link(journal, streams, DEVICE),
            fixed=fixed,
        )
        watch_units(kernels, units.values(), tables)
        kernels.after_instruction()
        yield PretendedRank(view, rank, executor, journal, streams, kernels, tables, names)


def rehearse_rank(
    view: RankView, program: Program, rank: int, optimizer: OptimizerSection, shapes: KnownShapes
) -> RankRehearsal:
    """Runs one step of a rank. `shapes` may be shared by ranks. Raises `RehearsalFault` for what a device would reject."""
    with pretended_rank(view, rank, optimizer, shapes) as pretended:
        journal, kernels, groups = pretended.journal, pretended.kernels, pretended.executor.groups
        resident = kernels.peak_bytes = kernels.live_bytes
        before = {axes: group.sent_bytes for axes, group in groups.items()}
        start = _Totals(journal)
        feed = pretended.feed()
        pretended.follow(program)
        with pretended.faults():
            pretended.executor.run(program, feed, 1e-4)
    return RankRehearsal(
        rank=rank,
        pp_rank=view.pp_rank,
        instructions=len(program.instructions),
        resident_bytes=resident,
        peak_bytes=kernels.peak_bytes,
        predicted_peak_bytes=memory_peak(program).bytes,
        launches=sum(journal.launches.values()) - start.launches,
        copies=journal.copies - start.copies,
        copied_bytes=journal.copied_bytes - start.copied_bytes,
        num_calls=len(journal.calls) - start.calls,
        waits=tuple(journal.waits[start.waits :]),
        calls=tuple(journal.calls[start.calls :]),
        joins=dict(journal.joins),
        sent_bytes={axes: group.sent_bytes - before[axes] for axes, group in groups.items()},
    )


class _Totals:
    """The journal's numbers before the step."""

    def __init__(self, journal: Journal) -> None:
        self.launches, self.waits, self.calls = sum(journal.launches.values()), len(journal.waits), len(journal.calls)
        self.copies, self.copied_bytes = journal.copies, journal.copied_bytes


def _fill(flat: FlatLayout, index: int, out: Tensor) -> None:
    """Parameters have no values here."""


def _operations(journal: Journal) -> Operations:
    """Operations of torch, but for the counts that a dispatcher reads from the device: experts are chosen equally often."""

    def host_counts(totals: Tensor, parts: Sequence[int], rows: int) -> list[tuple[int, ...]]:
        journal.wait("host_counts: rows to each expert")
        return even_counts(parts, rows)

    def host_sizes(ends: Tensor, rows: int) -> tuple[int, ...]:
        journal.wait("host_sizes: rows to each expert")
        return even_counts(tuple(ends.shape), rows)[0]

    return with_operations(torch_operations, {"host_counts": host_counts, "host_sizes": host_sizes})


def _feed(view: RankView, rank: int, tables: RotaryTables) -> RowFeed:
    """Microbatches of the rank's shape. Where documents are kept apart, each row is `DOCUMENTS` of them."""
    spec, layout = view.spec, view.spec.layout
    rows, length = layout.num_microbatches * layout.microbatch_sequences, layout.sequence_length
    tokens = np.zeros((rows, length), dtype=np.int64)
    positions = np.tile(np.arange(length), (rows, 1))
    most = [length // DOCUMENTS] * (DOCUMENTS - 1)
    documents = ((*most, length - sum(most)),) * rows if spec.document_mask else None
    batch = Batch(tokens, tokens, positions, documents)
    return rank_feed(spec, batch, rank, tables)
