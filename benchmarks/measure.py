"""Work of the ranks: they time two contenders in alternation, or run one alone for its losses and its peak of live tensors."""

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from fourfold.runtime.allocator import keep_freed_memory
from fourfold_peer import Fourfold
from memory import LiveTensors, peak_resident_bytes, reset_peak_resident
from peers import PEERS, Peer
from plain_llama import Shape, initial_weights

REFERENCE = "reference"  # one process that trains on the batches of all ranks, joined: what every contender must equal
INSPECTED_STEPS = 3


@dataclass(frozen=True)
class Work:
    """Training of every contender: the model, the batches, how many ranks share them."""

    shape: Shape = field(default_factory=Shape)
    ranks: int = 2
    sequences_per_rank: int = 2
    sequence_length: int = 512
    learning_rate: float = 3e-4
    seed: int = 0
    processor_seconds: bool = False
    """Whether a step's seconds are those of the rank's own threads, where other work shares the machine."""

    @property
    def tokens_per_step(self) -> int:
        return self.ranks * self.sequences_per_rank * self.sequence_length

    def contender(self, name: str) -> Peer:
        """Build one by name, from the same initial weights as all others."""
        weights = initial_weights(self.shape, self.seed)
        if name.startswith("fourfold_zero"):
            zero, _, library = name.removeprefix("fourfold_zero").partition("_")
            layout = {"dp_shard": self.ranks, "zero": int(zero), "microbatch_sequences": self.sequences_per_rank}
            return Fourfold(
                *(name, self.shape, weights, self.learning_rate, layout, self.sequence_length),
                chooses_matmuls=library == "onednn",
            )
        return PEERS["local" if name == REFERENCE else name](self.shape, weights, self.learning_rate)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets [B, T] of one rank: a function of (seed, step, rank) alone."""
        seed = (self.seed << 32) + step * 1024 + rank
        return random_batch(self.shape.vocab_size, self.sequences_per_rank, self.sequence_length, seed)

    def joined_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The batches of all ranks as one, [ranks * B, T]."""
        tokens, targets = zip(*(self.batch(rank, step) for rank in range(self.ranks)), strict=True)
        return torch.cat(tokens), torch.cat(targets)


def random_batch(vocab_size: int, sequences: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets [sequences, length]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (sequences, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@dataclass
class Progress:
    """How far the whole benchmark is, in training steps; good enough to tell the time that is left."""

    total_steps: int
    done_steps: int = 0
    started: float = field(default_factory=time.time)

    def line(self, text: str) -> None:
        left = (time.time() - self.started) / max(self.done_steps, 1) * (self.total_steps - self.done_steps)
        print(f"{text}  [{left / 60:.1f} min left]", flush=True)


def timed_steps(work: Work, peer: Peer, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Seconds a step over `batches`, as the slowest rank sees it; all ranks start together."""
    clock = time.process_time if work.processor_seconds else time.perf_counter
    dist.barrier()
    start = clock()
    for tokens, targets in batches:
        peer.step(tokens, targets)
    seconds = torch.tensor((clock() - start) / len(batches), dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def compare(
    work: Work, progress: Progress, rank: int, names: tuple[str, str], warmup: int, pairs: int, steps: int
) -> list[list[float]]:
    """Seconds a step of both contenders, one value a pair: A B, B A, A B ..., so that a drift of the machine cancels."""
    contenders = [work.contender(name) for name in names]
    for peer in contenders:
        timed_steps(work, peer, [work.batch(rank, step) for step in range(warmup)])
    progress.done_steps += 2 * warmup
    seconds: list[list[float]] = [[], []]
    for pair in range(pairs):
        batches = [work.batch(rank, warmup + pair * steps + step) for step in range(steps)]
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            seconds[side].append(timed_steps(work, contenders[side], batches))
        progress.done_steps += 2 * steps
        if rank == 0:
            a, b = seconds[0][-1], seconds[1][-1]
            text = f"{names[0]} {a:.3f} s  {names[1]} {b:.3f} s  ratio {a / b:.3f}"
            progress.line(f"  pair {pair + 1}/{pairs}  {text}")
    return seconds


def inspect(work: Work, progress: Progress, rank: int, name: str) -> dict:
    """Losses and gradient norms of the first steps, and the peaks of live tensors and of the resident set in the last of them."""
    with LiveTensors() as tracker:
        peer = work.contender(name)
        losses, norms = [], []
        for step in range(INSPECTED_STEPS):
            tokens, targets = work.joined_batch(step) if name == REFERENCE else work.batch(rank, step)
            tracker.reset_peak()
            reset_peak_resident()
            losses.append(peer.step(tokens, targets))
            norms.append(peer.gradient_norm)
        resting_bytes = tracker.live_bytes()
    peaks = torch.tensor([tracker.peak_bytes, peak_resident_bytes()], dtype=torch.int64)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)  # the worst rank's
    peak, resident = peaks.tolist()
    progress.done_steps += INSPECTED_STEPS
    if rank == 0:
        text = f"losses {' '.join(f'{loss:.6f}' for loss in losses)}  gradient norm {norms[-1]:.5f}"
        progress.line(f"  {name}: {text}  peak {peak / 1e6:.0f} MB, resident {resident / 1e6:.0f} MB")
    return {
        "losses": losses,
        "gradient_norms": norms,
        "peak_bytes": peak,
        "resident_bytes": resident,
        "between_steps_bytes": resting_bytes,
    }


def _rank_main(rank: int, ranks: int, store: str, results, task: Callable) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # for every contender alike
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    try:
        result = task(rank=rank)
    except NotImplementedError as error:
        if rank == 0:
            results.put(error)
        return
    if rank == 0:
        results.put(result)
    dist.barrier()
    sys.stdout.flush()
    os._exit(
        0
    )  # torch's own threads now and then abort a process that tears its groups down; the result is out already


def on_fresh_ranks(work: Work, task: Callable):
    """Run `task(rank=...)` on newly started ranks of one thread each; returns rank 0's result.

    Fresh processes, since DeepSpeed patches torch for good and a peak of memory must be one contender's own.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(_rank_main, (work.ranks, store, results, task), nprocs=work.ranks)
    result = results.get()
    if isinstance(result, NotImplementedError):
        raise SystemExit(str(result))
    return result
