"""One rank's context in the process group: rank, device, and a store for short messages between ranks."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from fourfold.config import UserError
from fourfold.config.schema import RunSection


@dataclass(frozen=True)
class RankContext:
    """Rank, world size and device of this process, and the store that all ranks share."""

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def generation() -> int:
    """How often the ranks of this launch were started before."""
    return int(os.environ.get("FOURFOLD_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def choose_device(section: RunSection) -> torch.device:
    """`cuda:LOCAL_RANK` where there is one, else the CPU."""
    if section.device == "cuda" and not torch.cuda.is_available():
        raise UserError('run.device = "cuda", but no CUDA device is visible; a value that works: "cpu"')
    if section.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise UserError(
            f"local rank {local} has no CUDA device of its own: there are {count}; start {count} ranks a node"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def init_rank_context(section: RunSection) -> RankContext:
    """Joins the process group named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    The store is this job's own, prefixed by the generation's number: restarted workers never read what an earlier generation left.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = choose_device(section)
    if section.threads_per_rank is not None:
        torch.set_num_threads(section.threads_per_rank)
    timeout = timedelta(seconds=section.timeout_seconds)
    agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    tcp = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0 and not agent_hosts,
        timeout=timeout,
        wait_for_workers=False,
    )
    store = dist.PrefixStore(f"fourfold/{generation()}", tcp)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=dist.PrefixStore("collectives", store), rank=rank, world_size=world_size, timeout=timeout
    )
    return RankContext(rank, world_size, device, dist.PrefixStore("words", store))


class StopSignal:
    """Agrees between ranks at which step to stop: whoever is asked says so in the store; rank 0 names a step not yet passed."""

    MARGIN_STEPS = 2  # ranks are at most one step apart, as every step ends in a collective

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._told = False
        self._stop_at: int | None = None
        self.requested = False
        """Set by a signal handler."""

    def stops_before(self, step: int) -> bool:
        """Whether step `step` must not be started. Called by every rank before every step."""
        store = self._context.store
        if self._context.world_size == 1:
            return self.requested
        if self.requested and not self._told:
            store.set("stop_requested", "1")
            self._told = True
        if self._stop_at is None:
            if self._context.rank == 0 and store.check(["stop_requested"]):
                store.set("stop_at", str(step + self.MARGIN_STEPS))
            if store.check(["stop_at"]):
                self._stop_at = int(store.get("stop_at"))
        return self._stop_at is not None and step >= self._stop_at
