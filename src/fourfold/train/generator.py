"""A full model in one process that reads tokens and says what comes next, with the keys and values of what it has read.

A layer's keys and values of earlier tokens do not depend on later ones, so a further token costs one row of every matmul, not all
rows again. Whatever computes them (grouped queries or MLA) hands them to attention, and there they are kept: with their positions,
and of MLA as the heads see them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fourfold.checkpoint import ParameterReader
from fourfold.checkpoint.unit_shard import balance_bias_extra
from fourfold.config import ModelConfig, RunFailure
from fourfold.model import torch_operations
from fourfold.model.block import block_forward
from fourfold.model.embedding import embedding_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.head import head_logits
from fourfold.model.layers import layers_of, reads_in_order, ropes_of
from fourfold.model.operations import Operations, with_operations
from fourfold.model.rope_tables import rope_tables
from fourfold.model.spec import ParameterSpec, bind_weights, build_segments
from fourfold.model.tiled_attention import attend_rows
from fourfold.model.visible import Visible
from fourfold.model.weights import FlatUnit

CPU = torch.device("cpu")


class KeyValueCache:
    """The keys and values of one layer, of up to `most` tokens. `operations` are those of torch, whose attention reads them.
    `window`, `chunk`: of that attention."""

    def __init__(self, most: int, window: int | None = None, chunk: int | None = None) -> None:
        self._most, self._held = most, 0
        self._window, self._chunk = window or most, chunk or most
        self._keys = self._values = torch.empty(0)
        members = {"attend": self._attend, "on_accelerator": lambda x: True}  # one call a layer, whatever the mask
        self.operations: Operations = with_operations(torch_operations, members)

    def clear(self) -> None:
        """Forgets all tokens."""
        self._held = 0

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        scale: float,
        documents: Visible | None = None,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`Operations.attend` of tokens that follow those held: all tokens so far at once, or one more."""
        first, last = self._held, self._held + k.shape[1]
        if not first:
            self._keys, self._values = (x.new_empty(x.shape[0], self._most, *x.shape[2:]) for x in (k, v))
        elif k.shape[1] > 1:
            raise ValueError("a token at a time follows those held")
        self._keys[:, first:last], self._values[:, first:last] = k, v
        self._held = last
        if not first:
            attend = torch_operations.attend if documents is None and window is None else attend_rows
            return attend(q, k, v, causal, scale, documents, window)
        seen = slice(max(last - self._window, (last - 1) // self._chunk * self._chunk), last)
        return torch_operations.attend(q, self._keys[:, seen], self._values[:, seen], False, scale)


class Generator:
    """The model in fp32 on a device. `most`: tokens that it is given at once."""

    def __init__(self, model: ModelConfig, reader: ParameterReader, most: int, device: torch.device = CPU) -> None:
        self._model = model = replace(model, capacity_factor=None, mtp_layers=0)
        self._device, self._most = device, most
        segments = build_segments(model)
        units = {}
        for unit in (unit for segment in segments for unit in segment.own):
            flat = torch.cat([_read(reader, spec).float().reshape(-1).to(device) for spec in unit.parameters])
            units[unit.name] = FlatUnit(unit.parameters, flat, flat)
        self._segments = segments
        self._weights = [bind_weights(segment, units) for segment in segments]
        names = [balance_bias_extra(segment.layer or 0) for segment in segments if segment.kind == "block"]
        self._biases = [reader.extra(name).float().to(device) if name in reader.extras else None for name in names]
        self._angles = {rope: rope_tables(rope, most, torch.float32, device) for rope in ropes_of(model)}
        mixers = (layer.mixer if layer is not None else None for layer in layers_of(model))
        self._caches = [KeyValueCache(most, getattr(m, "window", None), getattr(m, "chunk", None)) for m in mixers]
        self._read: list[int] = []
        self._keeps = model.block is None and not reads_in_order(model)

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> Tensor:
        """Logits of the token after `tokens`, at most `most` of them -> [vocab]. Tokens that go on from the last call's cost
        themselves alone, unless a person's own block or a recurrence is among the layers."""
        held = len(self._read)
        goes_on = self._keeps and 0 < held < len(tokens) and tokens[:held] == self._read
        if not goes_on:
            self._clear()
            held = 0
        result = self._forward(tokens[held:], held) if not held else None
        for place in range(held, len(tokens)) if held else ():
            result = self._forward(tokens[place : place + 1], place)
        assert result is not None
        self._read = list(tokens) if self._keeps else []
        return result

    def next_logits(self, tokens: Tensor) -> Tensor:
        """`logits` from all of `tokens` [seq] at once."""
        self._clear()
        return self.logits(tokens.tolist())

    def _clear(self) -> None:
        self._read = []
        for cache in self._caches:
            cache.clear()

    def _forward(self, tokens: list[int], first: int) -> Tensor:
        """Logits after tokens that stand at positions from `first` on."""
        row = torch.tensor([tokens], device=self._device)
        rows = slice(first, first + len(tokens))
        rope = {rope: (cos[rows].unsqueeze(-2), sin[rows].unsqueeze(-2)) for rope, (cos, sin) in self._angles.items()}
        batch = Microbatch(row, row[0], rope)
        embedding, *blocks, head = self._weights
        env = Environment(torch_operations, self._model)
        positions = torch.arange(first, first + len(tokens), device=self._device).unsqueeze(0)
        x = embedding_forward(env, batch.tokens, embedding, positions)
        for segment, block, bias, cache in zip(self._segments[1:-1], blocks, self._biases, self._caches, strict=True):
            own = replace(env, ops=cache.operations) if self._keeps else env
            x = block_forward(
                segment, own, x, block, batch, Saved(keeps=False), Balancing(1, len(tokens), 1, bias=bias)
            )
        return head_logits(env, x[-1:], head)[0]


def _read(reader: ParameterReader, spec: ParameterSpec) -> Tensor:
    """A parameter. Raises `RunFailure` where the checkpoint is of another model."""
    if (there := reader.shapes.get(spec.name)) != spec.shape:
        found = f"of {list(there)}" if there is not None else "nowhere"
        raise RunFailure(
            f"{reader.path}: holds {spec.name} {found}, run.toml says {list(spec.shape)}; put the run's own run.toml back"
        )
    return reader.get(spec.name)
