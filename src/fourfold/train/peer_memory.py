"""Copies of the state in memory, every so many steps: of a rank's own on its machine, and of a peer's on another machine.

    step ─► own file ─► this machine's memory ──(beside training)──► the peer's machine        a replica writes it itself
    start ─► every machine: which copies are intact ─► rank 0: the newest complete step ─► moved ─► read as files

A copy is the file that a checkpoint would hold, digests included, and is read by the same reader.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint.checked_file import CheckedFile, emit_file, file_bytes
from fourfold.checkpoint.commit import rank_record, rank_tensors
from fourfold.checkpoint.file_bytes import DescriptorBytes, FileDigest
from fourfold.checkpoint.save import file_name, layout_degrees
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.unit_shard import UnitShard, file_metadata, is_first_of_stage, places
from fourfold.config import RunConfig
from fourfold.config.json_lines import newest_first
from fourfold.program.view import RankView
from fourfold.runtime.memory_file import DESCRIPTOR, PLACE, VERSIONS, MemoryFile
from fourfold.runtime.progress import this_boot
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit
from fourfold.train import state
from fourfold.train.memory_plan import MemoryCopy, choose, moves, needed_files
from fourfold.train.memory_transfer import MemoryTransfer
from fourfold.train.metrics import EVENTS, append_event
from fourfold.train.peers import peers, replicated_axes, sent_pairs
from fourfold.train.session import RankContext, generation

_ROOM_BYTES = 1 << 12
"""By which a file may grow with the digits of its step."""
NO_ADVICE = "the next one is taken"


def open_peer_memory(config: RunConfig, out: Path, context: RankContext, view: RankView) -> "PeerMemory | None":
    """This rank's part of the copies; None where the run file asks for none, or a machine has no memory for them."""
    if not config.checkpoint.memory_every_steps:
        return None
    if not context.least(int(DESCRIPTOR in os.environ)):
        return None
    return PeerMemory(MemoryFile(int(os.environ[DESCRIPTOR])), config, out, context, view)


class PeerMemory:
    """One rank's part. All ranks call the same methods in the same order."""

    def __init__(self, memory: MemoryFile, config: RunConfig, out: Path, context: RankContext, view: RankView) -> None:
        self._memory, self._out, self._context, self._view = memory, out, context, view
        self.every_steps = config.checkpoint.memory_every_steps
        self._transfer = MemoryTransfer(memory, context, config.run.timeout_seconds)
        rank, layout = context.rank, view.spec.layout
        self._machines = self._transfer.sizes(int(os.environ.get("FOURFOLD_MACHINE", "0")))
        self._of_machine = [r for r, machine in enumerate(self._machines) if machine == self._machines[rank]]
        hosts = self._transfer.sizes(
            this_boot()
        )  # launchers start several supervisors on one host, which is lost as a whole
        hosts = hosts if len(set(hosts)) > 1 else self._machines
        kept_by = peers(layout, hosts, replicated_axes(view))
        self._transfer.connect(sent_pairs(hosts, kept_by))
        self._peer = kept_by[rank]
        self._own = [
            rank,
            *(r for r, peer in enumerate(kept_by) if peer is not None and peer.is_replica and peer.rank == rank),
        ]
        """Ranks whose files this one writes: they hold what it holds."""
        self._backed_up = [
            r for r, peer in enumerate(kept_by) if peer is not None and not peer.is_replica and peer.rank == rank
        ]
        self._is_sent = any(peer is not None and not peer.is_replica for peer in kept_by)
        here = {
            *self._of_machine,
            *(r for r, peer in enumerate(kept_by) if peer is not None and peer.rank in self._of_machine),
        }
        self._here = here if rank == self._of_machine[0] else None
        self._fence = int(os.environ.get("FOURFOLD_FENCE", "0"))
        self._version = self._prepared = 0
        self._is_on = True
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._sizes: list[int] = []

    def find(self) -> MemoryCopy | None:
        """The newest step of which every part is there and intact; None without one."""
        if not generation():
            return None
        heads, damaged = [], []
        for index, (rank, version) in enumerate(self._memory.regions()):
            if index % len(self._of_machine) == self._of_machine.index(self._context.rank):
                text = self._memory.head(rank, version)
                problem = self._problem(rank, version, text) if text is not None else None
                if problem is not None:
                    damaged.append(problem)
                elif text is not None:
                    heads.append([rank, version, text])
        machine = self._machines[self._context.rank]
        told = self._transfer.gather(json.dumps({"machine": machine, "heads": heads, "damaged": damaged}))
        if self._context.rank == 0:
            found = [json.loads(text) for text in told]
            for problem in (text for each in found for text in each["damaged"]):
                append_event(self._out, "memory_refused", message=problem)
            copy = None if self._is_distrusted() else choose(found, self._memory.lineage)
            self._transfer.tell(copy.to_json() if copy is not None else "")
            return copy
        text = self._transfer.tell("")
        return MemoryCopy.from_json(text) if text else None

    def _problem(self, rank: int, version: int, head: str) -> str | None:
        """Why a copy is not what was written."""
        record = FileDigest(**json.loads(head)["file"])
        try:
            name = Path(f"{file_name(rank)} of step {json.loads(head)['step']} in memory")
            file = CheckedFile(name, record, NO_ADVICE, self._bytes(rank, version, record))
            file.verify(file.all_chunks)
        except DamagedCheckpoint as error:
            return error.problem
        return None

    def _bytes(self, rank: int, version: int, record: FileDigest) -> DescriptorBytes:
        return DescriptorBytes(self._memory.descriptor, self._memory.data_start(rank, version), record.size_bytes)

    def _is_distrusted(self) -> bool:
        """Whether the last ranks found silent corruption: copies since the last check may hold it."""
        kinds = (row.get("event") for row in newest_first(self._out / EVENTS))
        return next((kind for kind in kinds if kind in ("start", "resume", "corruption")), "") == "corruption"

    def fetch(self, copy: MemoryCopy, shards: Mapping[str, UnitShard], extras: Mapping[str, Tensor]) -> dict[str, Any]:
        """Brings the files that hold these shards to this machine's memory; where their bytes are, by name."""
        needed = needed_files(copy.manifest, shards, extras)
        machine = self._machines[self._context.rank]
        missing = [name for name in needed if machine not in copy.holders[name]]
        told = self._transfer.gather(json.dumps(missing))
        plan = moves([json.loads(text) for text in told], self._machines, copy.holders) if told else []
        for name, source, target in json.loads(self._transfer.tell(json.dumps(plan))):
            region, size = (copy.rank_of(name), copy.version), copy.manifest.files[name].size_bytes
            self._transfer.connect([(source, target)])
            if source == self._context.rank:
                self._transfer.exchange(target, (region, size), (), ())
            elif target == self._context.rank:
                self._memory.reserve(*region, size)
                self._transfer.exchange(None, None, (source,), (region,))
        self._transfer.meet()
        return {name: self._bytes(copy.rank_of(name), copy.version, copy.manifest.files[name]) for name in needed}

    def begin(self, copy: MemoryCopy | None) -> None:
        """The ranks go on, from `copy` or from elsewhere: what others left is no longer gone on from."""
        if self._context.rank == 0:
            self._memory.lineage = {"fence": self._fence, "attempt": copy.attempt if copy is not None else ""}
        self._version = 1 - copy.version if copy is not None else 0

    def take(self, step: int, info: Mapping[str, Any], units: Mapping[str, Unit], routers: Routers) -> float:
        """Copies the state before step `step`; the seconds that training stood still."""
        begun = time.perf_counter()
        self.wait()
        if self._prepared < VERSIONS:
            self._prepare(units, routers)
        if self._is_on:
            for rank in self._own:
                self._write(rank, step, info, units, routers)
            if self._is_sent:
                self._thread = threading.Thread(target=self._send, args=(self._version,), daemon=True)
                self._thread.start()
            self._version = 1 - self._version
        return time.perf_counter() - begun

    def wait(self) -> None:
        """Returns when the last copy has arrived everywhere: only then may the one before be overwritten."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _prepare(self, units: Mapping[str, Unit], routers: Routers) -> None:
        """Takes the memory of this version, on all machines or on none."""
        self._prepared += 1
        written = state.written_tensors(self._view, units, routers, self._context.rank)
        self._sizes = self._transfer.sizes(file_bytes(written, file_metadata(0, {})) + _ROOM_BYTES * (1 + len(units)))
        if self._here is not None:
            for rank, version in self._memory.regions():
                if version == self._version and rank not in self._here:
                    self._memory.free(rank, version)
        enough = True
        try:
            for rank in (*self._own, *self._backed_up):
                self._memory.reserve(rank, self._version, self._sizes[rank])
        except OSError as error:
            enough = False
            rank, free = self._context.rank, os.statvfs(PLACE)
            needed = sum(self._sizes[r] for r in (*self._own, *self._backed_up))
            append_event(
                self._out,
                "memory_failed",
                rank=rank,
                message=f"{PLACE}: {error.strerror}: rank {rank} needs {needed} bytes for one copy of two, "
                f"{free.f_bavail * free.f_frsize} are free; training goes on without; what helps: a larger one "
                f"(mount -o remount,size=..., docker --shm-size), or checkpoint.memory_every_steps = 0",
            )
        if self._is_on and not self._context.least(int(enough)):
            self._is_on = False
            for rank in (*self._own, *self._backed_up):
                for version in range(VERSIONS):
                    self._memory.free(rank, version)

    def _write(
        self, rank: int, step: int, info: Mapping[str, Any], units: Mapping[str, Unit], routers: Routers
    ) -> None:
        """The file that `rank` would save, into its region here."""
        view, version = self._view, self._version
        layout = view.spec.layout
        shards = {name: each for name, each in state.unit_shards(layout, units, rank).items() if each.is_writer}
        extras = state.extra_tensors(view, routers) if is_first_of_stage(layout, rank) else {}
        place = self._memory.data_start(rank, version)
        self._memory.begin(rank, version)

        def write(data: bytes | memoryview) -> None:
            nonlocal place
            self._memory.write(data, place)
            place += len(data)

        file = emit_file(write, rank_tensors(shards, extras), file_metadata(step, places(shards)))
        attempt = f"{self._fence}-{step}"
        head = {
            "step": step,
            "fence": self._fence,
            "attempt": attempt,
            "file": vars(file),
            "info": state.full_info(info, view, self._fence),
            "layout": layout_degrees(layout),
            "units": state.unit_names(view.spec),
            "record": rank_record(shards, extras, file, attempt),
        }
        self._memory.commit(rank, version, json.dumps(head))

    def _send(self, version: int) -> None:
        """Beside training: this rank's copy to its peer, others' to this machine."""
        try:
            own = self._region(self._context.rank, version)
            to = self._peer.rank if self._peer is not None and not self._peer.is_replica else None
            self._transfer.exchange(to, own, self._backed_up, [(rank, version) for rank in self._backed_up])
            self._transfer.meet()
        except Exception as error:
            self._error = error

    def _region(self, rank: int, version: int) -> tuple[tuple[int, int], int]:
        head = json.loads(self._memory.head(rank, version) or "{}")
        return (rank, version), int(head["file"]["size_bytes"])
