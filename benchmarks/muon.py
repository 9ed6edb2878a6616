"""Muon: the time of the optimizer, fourfold under ZeRO beside torch.optim.Muon under DDP, or beside DeepSpeed's under ZeRO.

    python benchmarks/muon.py [--ranks 2 4] [--zero 0 1 3] [--pairs 7] [--peer deepspeed]

Both train the same Llama on the same batches in fp32: Muon for hidden matrices, AdamW for embeddings, head and norms. Timed is what
follows the norm of the gradients until the parameters are where the next step needs them, as the slowest rank sees it: under ZeRO-1
and 2 the gather of the updated parameters too. torch iterates in bf16, which processors without bf16 instructions compute slowly;
the peer iterates in fp32 as fourfold does, by torch's own formulas: the work is equal. Losses of the first steps must agree.

DeepSpeed (`pip install deepspeed`) orthogonalizes at the end of its backward, before it clips, so that its losses differ after the
first step. Its time is that of its `muon_update`, in fp32 with the same iterations and not compiled, and of its engine's step.
"""

import argparse
import os
import statistics
import time
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fourfold.program import Instruction
from fourfold.program.instruction import Op
from fourfold_peer import Fourfold, run_table
from measure import Work, on_fresh_ranks
from peers import BETAS, CLIP_NORM, EPS, WEIGHT_DECAY, build_model, deepspeed_config, mean_over_ranks
from plain_llama import initial_weights

LEARNING_RATE, ADAMW_RATE, MOMENTUM = 0.02, 3e-4, 0.95
LOSS_TOLERANCE = 2e-5


def orthogonalized(grad: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """torch.optim.Muon's iterations, in the format of the gradient."""
    a, b, c = coefficients
    x = grad.T if grad.shape[0] > grad.shape[1] else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.shape[0] > grad.shape[1] else x


class TorchMuon:
    """DDP with torch.optim.Muon and AdamW. A step returns the loss and the seconds of its optimizers."""

    def __init__(self, work: Work) -> None:
        model = build_model(work.shape, initial_weights(work.shape, work.seed))
        self.model = DistributedDataParallel(model)
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
        held = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in held]
        decayed = [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM),
            torch.optim.AdamW(decayed, lr=ADAMW_RATE, betas=BETAS, eps=EPS, fused=True),
        ]

    def step(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        loss = self.model(tokens, targets, targets.numel())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        begun = time.perf_counter()
        with patch("torch.optim._muon._zeropower_via_newtonschulz", orthogonalized):
            for optimizer in self.optimizers:
                optimizer.step()
        seconds = time.perf_counter() - begun
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return mean_over_ranks(loss), seconds


class DeepSpeedMuon:
    """DeepSpeed's engine with its optimizer `Muon`. A step returns the loss and the seconds of its optimizer."""

    def __init__(self, work: Work, zero: int) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
        os.environ.setdefault("LOCAL_SIZE", str(dist.get_world_size()))
        import deepspeed  # here: importing it takes seconds, and a package that need not be installed
        from deepspeed.runtime.zero.muon import original_muon

        model = build_model(work.shape, initial_weights(work.shape, work.seed))
        for name, parameter in model.named_parameters():
            parameter.use_muon = parameter.ndim == 2 and "layers" in name
        rates = {"lr": LEARNING_RATE, "muon_lr": LEARNING_RATE, "adam_lr": ADAMW_RATE}
        own = {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "ns_method": "standard", "torch_adam": True}
        sizes = deepspeed_config(zero, sum(parameter.numel() for parameter in model.model.layers[0].parameters()))
        sizes["zero_optimization"]["reduce_scatter"] = False  # DeepSpeed refuses its Muon with it
        optimizer = {"type": "Muon", "params": {**rates, **own, "betas": list(BETAS), "eps": EPS}}
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=list(model.parameters()),
            config={**sizes, "optimizer": optimizer},
            dist_init_required=False,
        )
        self.updating = 0.0
        plain = original_muon.muon_update

        def timed(*args: Any, **keys: Any) -> Tensor:
            begun = time.perf_counter()
            update: Tensor = plain(*args, **keys)
            self.updating += time.perf_counter() - begun
            return update

        torch.compiler.set_stance("force_eager")  # DeepSpeed compiles its iterations, torch does not
        original_muon.ns_compute_dtype = lambda ns_method="standard": torch.float32
        original_muon.muon_update = timed

    def step(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        self.updating = 0.0
        loss = self.engine(tokens, targets, float(targets.numel()))
        self.engine.backward(loss)
        inside, begun = self.updating, time.perf_counter()
        self.engine.step()
        return mean_over_ranks(loss), inside + time.perf_counter() - begun


class FourfoldMuon(Fourfold):
    """fourfold with `optimizer.name = "muon"`."""

    def __init__(self, work: Work, zero: int) -> None:
        layout = {"dp_shard": work.ranks, "zero": zero, "microbatch_sequences": work.sequences_per_rank}
        weights = initial_weights(work.shape, work.seed)
        super().__init__(f"zero {zero}", work.shape, weights, LEARNING_RATE, layout, work.sequence_length)

    def step(self, tokens: Tensor, targets: Tensor) -> tuple[float, float]:  # type: ignore[override]
        begun = 0.0

        def observe(index: int, step: Instruction) -> None:
            nonlocal begun
            if step.op is Op.CLIP_NORM:
                begun = time.perf_counter()

        result = self.executor.run(self.program, self.data(tokens, targets), LEARNING_RATE, observe)
        return result.loss, time.perf_counter() - begun


def muon_table(*args: object) -> dict:
    """The run file of `Fourfold`, with Muon."""
    table = run_table(*args)  # type: ignore[arg-type]
    adamw = table["optimizer"]
    muon = {"name": "muon", "momentum": MOMENTUM, "adamw_lr": ADAMW_RATE, **adamw}
    return {**table, "optimizer": muon}


def compare(work: Work, zero: int, pairs: int, peer: str, rank: int) -> list[tuple[float, float]]:
    """Seconds of both optimizers, as the slowest rank sees them, a pair a step."""
    with patch("fourfold_peer.run_table", muon_table):
        ours = FourfoldMuon(work, zero)
    theirs, found = DeepSpeedMuon(work, zero) if peer == "deepspeed" else TorchMuon(work), []
    for step in range(2 + pairs):
        batch = work.batch(rank, step)
        sides = [ours, theirs] if step % 2 == 0 else [theirs, ours]
        results = {side: side.step(*batch) for side in sides}
        (loss, mine), (expected, other) = results[ours], results[theirs]
        if step < (1 if peer == "deepspeed" else 3) and abs(loss - expected) > LOSS_TOLERANCE * abs(expected):
            raise SystemExit(f"losses differ at step {step}: {loss} and {expected}")
        seconds = torch.tensor([mine, other], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found.append((float(seconds[0]), float(seconds[1])))
    return found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--peer", choices=["torch", "deepspeed"], default="torch")
    options = parser.parse_args()
    print(
        f"| ranks | fourfold | fourfold ms | {options.peer} ms | ratio, median of pairs (min-max) |\n|---|---|---|---|---|"
    )
    for ranks in options.ranks:
        work = Work(ranks=ranks, sequences_per_rank=1, sequence_length=128)
        for zero in options.zero:
            pairs = on_fresh_ranks(work, partial(compare, work, zero, options.pairs, options.peer))
            ratios = [ours / theirs for ours, theirs in pairs]
            ours, theirs = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
            print(f"| {ranks} | ZeRO-{zero} | {ours:.1f} | {theirs:.1f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
