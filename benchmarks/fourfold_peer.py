"""fourfold as a contender: the same weights, batches, optimizer and clipping as its peers, run by its own runtime."""

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.config import parse_run, resolve_model
from fourfold.layout import FlatLayout, resolve_layout
from fourfold.model.rope import rope_tables
from fourfold.model.segments import Microbatch
from fourfold.program import lower_step
from fourfold.program.buffers import Lowering
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.units import build_units, share_parameters
from peers import BETAS, CLIP_NORM, EPS, WEIGHT_DECAY, Peer
from plain_llama import Shape


class Fourfold(Peer):
    """Data parallelism over all ranks at ZeRO stage `zero` (0 = replicated, 1, 2, 3).

    The default process group (gloo) exists already; `weights` bear Hugging Face's names and are the caller's, so copy them.
    A step sets `gradient_norm` and returns the loss, as `Peer` says.
    """

    def __init__(
        self, shape: Shape, weights: dict[str, Tensor], learning_rate: float, zero: int, sequences: int, length: int
    ):
        if zero not in (0, 1, 2, 3):
            raise ValueError(f"zero = {zero}: allowed are 0, 1, 2, 3; for example zero=3")
        self.name = f"fourfold_zero{zero}"
        self.learning_rate = learning_rate
        ranks = dist.get_world_size()
        config = parse_run(run_table(shape, zero, ranks, sequences, length, learning_rate))
        model = resolve_model(config.model)
        layout = resolve_layout(config, model, ranks)
        facts = Lowering.of(config, model, layout)
        self.program = lower_step(facts)
        axes = sorted({c.axes for step in self.program.instructions for c in step.collectives})
        groups = make_groups(layout, dist.get_rank(), axes, 600.0)
        device = torch.device("cpu")

        def fill(flat: FlatLayout, index: int, out: Tensor) -> None:
            whole = torch.zeros(flat.padded_numel)
            for spec, start, end in flat.ranges():
                whole[start:end] = weights[spec.name].reshape(-1)
            out.copy_(whole[slice(*flat.shard_range(index))])

        units = build_units(facts, dist.get_rank(), config.optimizer, device, fill)
        share_parameters(facts, units, groups)
        self.executor = Executor(facts, units, groups, config.optimizer, device)
        cos, sin = rope_tables(model, length, torch.float32, device)
        self.tables = cos.unsqueeze(-2), sin.unsqueeze(-2)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        result = self.executor.run(self.program, WholeBatch(tokens, targets, self.tables), self.learning_rate)
        self.gradient_norm = result.grad_norm
        return result.loss


class WholeBatch:
    """One rank's tokens and targets [B, T] as its one microbatch."""

    def __init__(self, tokens: Tensor, targets: Tensor, tables: tuple[Tensor, Tensor]):
        self.tokens, self.targets, self.tables = tokens, targets, tables
        self.num_targets = targets.numel()

    def load(self, microbatch: int) -> Microbatch:
        return Microbatch(self.tokens, self.targets, *self.tables)


def run_table(shape: Shape, zero: int, ranks: int, sequences: int, length: int, learning_rate: float) -> dict:
    """The run file of this contender."""
    return {
        "model": {
            "num_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "ffn_size": shape.ffn_size,
            "vocab_size": shape.vocab_size,
            "rope_theta": shape.rope_theta,
            "norm_eps": shape.norm_eps,
        },
        "batch": {"global_sequences": ranks * sequences, "sequence_length": length},
        "layout": {"dp_shard": ranks, "zero": zero, "microbatch_sequences": sequences},
        "optimizer": {
            "lr": learning_rate,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
            "clip_norm": CLIP_NORM,
        },
    }
