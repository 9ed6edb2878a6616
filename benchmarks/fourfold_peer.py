"""fourfold as a contender: the same weights, batches, optimizer and clipping as its peers, run by its own runtime."""

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.kernels.matmul.libraries import by_onednn, faster_by_onednn, measure, processor_clock, step_matmuls
from fourfold.layout import FlatLayout, Layout, resolve_layout
from fourfold.model import torch_operations
from fourfold.model.environment import Microbatch
from fourfold.model.layers import ropes_of
from fourfold.model.operations import Operations
from fourfold.model.rope_tables import rope_tables
from fourfold.program import lower_step, rank_view, resolve_step
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.initialize import global_runs, shard_pieces
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.units import build_units, share_parameters
from fourfold.train.feed import RotaryTables
from peers import BETAS, CLIP_NORM, EPS, WEIGHT_DECAY, Peer
from plain_llama import Shape


class Fourfold(Peer):
    """Training under one layout over all ranks. `layout`: the `[layout]` section of a run file.

    The default process group (gloo) exists already; `weights` bear Hugging Face's names and are the caller's, so they are
    copied. A step sets `gradient_norm` and returns the loss, as `Peer` says. `sequences`: of the global batch when a step is given
    all of it; None: a step is given this rank's rows alone, all of them one microbatch. `model`: a `[model]` section instead of
    `shape`. `chooses_matmuls`: whether oneDNN computes those that it is faster at, as in a run that is long enough.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        weights: dict[str, Tensor],
        learning_rate: float,
        layout: dict,
        length: int,
        sequences: int | None = None,
        model: dict | None = None,
        chooses_matmuls: bool = False,
    ):
        self.name, self.learning_rate, self.takes_part = name, learning_rate, sequences is not None
        ranks, self.rank = dist.get_world_size(), dist.get_rank()
        sequences = sequences or ranks * layout["microbatch_sequences"]
        table = run_table(shape, layout, sequences, length, learning_rate)
        config = parse_run(table if model is None else {**table, "model": model})
        resolved = resolve_model(config.model)
        self.spec = resolve_step(config, resolved, resolve_layout(config, resolved, ranks))
        view = rank_view(self.spec, self.spec.layout.coordinates(self.rank)["pp"])
        self.program = lower_step(view)
        self.groups = make_groups(self.spec.layout, self.rank, groups_of(self.spec), 600.0)
        device = torch.device("cpu")
        coordinates = self.spec.layout.coordinates(self.rank)

        def fill(flat: FlatLayout, index: int, out: Tensor) -> None:
            out.zero_()
            for local, start, end, target in shard_pieces(flat, index, out):
                full = weights[local.name].reshape(-1)
                for first, last, low, high in global_runs(local, coordinates, start, end):
                    target[low:high] = full[first:last]

        units = build_units(view, self.rank, config.optimizer, device, fill)
        share_parameters(self.spec, units, self.groups)
        operations: Operations = torch_operations
        if chooses_matmuls:
            operations = by_onednn(operations, faster_by_onednn(measure(step_matmuls(self.program), processor_clock)))
        self.executor = Executor(view, units, self.groups, config.optimizer, device, self.rank, operations=operations)
        ropes = {rope: rope_tables(rope, length, torch.float32, device) for rope in ropes_of(resolved)}
        self.tables = RotaryTables(device, ropes)

    def data(self, tokens: Tensor, targets: Tensor) -> "OwnPart":
        """Inputs of the executor in a step on this batch."""
        layout = self.spec.layout
        rows = [range(len(tokens))]
        if self.takes_part:
            rows = [layout.rows(self.rank, m) for m in range(layout.num_microbatches)]
        return OwnPart(tokens, targets, self.tables, rows, positions(layout, self.rank))

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        result = self.executor.run(self.program, self.data(tokens, targets), self.learning_rate)
        self.gradient_norm = result.grad_norm
        return result.loss


def positions(layout: Layout, rank: int) -> Tensor | None:
    """Positions of a sequence that the rank has; None: all."""
    return torch.tensor(layout.positions(rank)) if layout.cp > 1 else None


class OwnPart:
    """One rank's rows, microbatch by microbatch, and positions of the tokens and targets [B, T] that it is given."""

    def __init__(
        self,
        tokens: Tensor,
        targets: Tensor,
        tables: RotaryTables,
        rows: list[range],
        columns: Tensor | None,
    ):
        self.tokens, self.targets, self.rows, self.rope = tokens, targets, rows, tables.at(columns)
        if columns is not None:
            self.tokens, self.targets = tokens[:, columns], targets[:, columns]
        self.num_targets = sum(len(part) for part in rows) * self.targets.shape[1]

    def load(self, microbatch: int) -> Microbatch:
        rows = slice(self.rows[microbatch].start, self.rows[microbatch].stop)
        return Microbatch(self.tokens[rows], self.targets[rows], self.rope)


def run_table(shape: Shape, layout: dict, sequences: int, length: int, learning_rate: float) -> dict:
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
        "batch": {"global_sequences": sequences, "sequence_length": length},
        "layout": layout,
        "optimizer": {
            "lr": learning_rate,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
            "clip_norm": CLIP_NORM,
        },
    }
