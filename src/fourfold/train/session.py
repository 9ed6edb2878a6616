"""One rank's context in the process group: rank, device, and a store for short messages between ranks."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from fourfold.config import FinalFailure, UserError
from fourfold.config.errors import require_group_files
from fourfold.config.schema import RunSection
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.rendezvous.connection import SECRET
from fourfold.rendezvous.store import SecretStore

_TEXT_BYTES = 4096
_WORDS = "words"
"""The prefix of the ranks' messages in the store."""


@dataclass(frozen=True)
class RankContext:
    """Rank, world size and device of this process, and the store that all ranks share: `store` is a part of `base`, which torch
    does not keep alive by itself."""

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store
    base: SecretStore

    def least(self, value: int) -> int:
        """The smallest of all ranks' values, below 2**63."""
        result = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.all_reduce(result, op=dist.ReduceOp.MIN)
        return int(result.item())

    def most(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, place by place."""
        return most_of_ranks(values, self.device)

    def tell(self, text: str, source: int) -> str:
        """The text of rank `source`, on every rank; a long one is cut."""
        buffer = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        if self.rank == source:
            data = text.encode(errors="replace")[:_TEXT_BYTES]
            buffer[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
        buffer = buffer.to(self.device)
        dist.broadcast(buffer, source)
        return bytes(buffer.tolist()).rstrip(b"\0").decode(errors="replace")

    def awaited(self, key: str, heard: str) -> Callable[[], bool]:
        """A look whether a key of `store` was set, which makes no request; who hears of it adds one to the key `heard`."""
        return self.base.awaited(f"{_WORDS}/{key}", f"{_WORDS}/{heard}")

    def barrier(self, name: str, record: Callable[[int], None] = lambda counter: None) -> StoreBarrier:
        """A barrier of all ranks that needs no process group. `record`: as of a `StoreBarrier`."""
        return StoreBarrier(self.store, name, self.world_size, self.base.seconds, record)

    def agree(self, what: str, value: str, first: int) -> None:
        """Raises `FinalFailure` on every rank whose value is not that of rank `first`."""
        if self.rank == first:
            self.store.set(what, value)
        expected = self.store.get(what).decode()
        if value != expected:
            raise FinalFailure(
                f"rank {self.rank} lowered another {what} ({value}) than rank {first} ({expected}); "
                f"start all ranks with the same version and the same run file"
            )

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def generation() -> int:
    """How often the ranks of this launch were started before."""
    return int(os.environ.get("FOURFOLD_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def choose_device(section: RunSection, claim: Callable[[int], bool] = lambda index: True) -> torch.device:
    """The CUDA device of LOCAL_RANK among those that this process sees, else the CPU. `claim`: whether a device is this rank's.

    A launcher that starts a process for each rank (LOCAL_WORLD_SIZE = 1 here) may show it all devices of the node, its own alone,
    or some that a few ranks share: then LOCAL_RANK counts ranks of the node, which may be more than there are to see, and the
    first device that is not another rank's is taken.
    """
    if section.device == "cpu" or not torch.cuda.is_available():
        if section.device == "cuda":
            raise UserError(
                f'run.device = "cuda", but no CUDA device is visible{_visible()}; a value that works: run.device = "cpu"'
            )
        return torch.device("cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    is_alone = os.environ.get("LOCAL_WORLD_SIZE", "1") == "1"
    if local >= count and not is_alone:
        raise UserError(
            f"local rank {local} has no CUDA device of its own: there are {count}{_visible()}; start {count} ranks a node"
        )
    index = next((i for step in range(count) if claim(i := (local + step) % count)), None) if is_alone else local
    if index is None:
        raise FinalFailure(
            f"local rank {local} has no CUDA device of its own: other ranks have all {count} that it sees{_visible()}; what works: "
            f"srun --gpus-per-task=1, --gpu-bind=none so that each task sees all, or {count} ranks a node"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _visible() -> str:
    """The variable that hides devices, in brackets; empty where it is not set."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f" (CUDA_VISIBLE_DEVICES = {told[:80]!r})" if told is not None else ""


def _claim(store: dist.Store, rank: int, index: int) -> bool:
    """Whether no other rank has this device, by the number that its maker gave it."""
    number = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return number is None or store.compare_set(f"device/{number}", "", str(rank)) == b"%d" % rank


def open_store(timeout: timedelta) -> SecretStore:
    """The store of this generation, of which no other sees a key, at MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return SecretStore(host, port, bytes.fromhex(os.environ[SECRET]), timeout, f"generation {generation()}/")


def init_rank_context(section: RunSection) -> RankContext:
    """Joins the process group named by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the secret beside them.

    The store is this run's own, and the generation's number is part of every key: restarted workers never read what an earlier
    generation left, whatever prefix torch takes off.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=section.timeout_seconds)
    base = open_store(timeout)
    device = choose_device(section, partial(_claim, base, rank))
    if section.threads_per_rank is not None:
        torch.set_num_threads(section.threads_per_rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "gloo":
        require_group_files(world_size)
    dist.init_process_group(
        backend, store=dist.PrefixStore("collectives", base), rank=rank, world_size=world_size, timeout=timeout
    )
    return RankContext(rank, world_size, device, dist.PrefixStore(_WORDS, base), base)


class StopSignal:
    """Agrees between ranks at which step to stop: whoever is asked says so in the store; rank 0 names a step not yet passed.

    Until somebody is asked, a rank has one request at the store, which waits for that word: steps make none. Who hears the word
    says so at once, and asks from the next step on, by a thread while the step runs; the answer is read before the step after, so
    that none waits for the store. Rank 0 names a step once all have heard. A rank that asks during step k + 2 sees what rank 0
    named during step k: ranks are at most one step apart, as every step ends in a collective, and this one heard before.
    """

    MARGIN_STEPS = 3

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._thread = ThreadPoolExecutor(1, "stop-signal")
        self._asked: Future[int | None] | None = None
        self._heard: Callable[[], bool] | None = None
        self._told = False
        self.requested = False
        """Set by a signal handler."""

    def stops_before(self, step: int) -> bool:
        """Whether step `step` must not be started. Called by every rank before every step."""
        if self._context.world_size == 1:
            return self.requested
        self._heard = self._heard or self._context.awaited("stop_requested", "stop_heard")
        if self.requested and not self._told:
            self._context.store.set("stop_requested", "1")
            self._told = True
        if not self._heard():
            return False
        stop_at = self._asked.result() if self._asked is not None else None
        if stop_at is None:
            self._asked = self._thread.submit(self._ask, step)
        return stop_at is not None and step >= stop_at

    def _ask(self, step: int) -> int | None:
        """The step to stop before, if there is one yet."""
        store = self._context.store
        if self._context.rank != 0:
            return _step_near(step, store.get("stop_at")) if store.check(["stop_at"]) else None
        if store.add("stop_heard", 0) < self._context.world_size:
            return None
        named = step + self.MARGIN_STEPS
        store.set("stop_at", str(named))
        return named


def _step_near(step: int, text: bytes) -> int | None:
    """The step that rank 0 named, when this rank was at `step`; None where that cannot be what it named."""
    try:
        named = int(text)
    except ValueError:
        return None
    return named if step <= named <= step + StopSignal.MARGIN_STEPS + 1 else None


def most_of_ranks(values: list[float], device: torch.device) -> list[float]:
    """The largest of all ranks' values, place by place."""
    result = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(result, op=dist.ReduceOp.MAX)
    return [float(value) for value in result.tolist()]
