"""The numbers of a sampled step from one process of transformers: gradients and parameters by their names, outputs and attention's
queries and keys from hooks, loads from the routers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import parity_reference
from tests.support.parity_check import expected_record
from tests.support.parity_ranks import prepare_rank
from tests.support.parity_reference import Record, Routing, reference

Samples = dict[str, list[float | None]]


class _Watched:
    """Hooks of one model. Each step begins anew."""

    def __init__(self) -> None:
        self.squares: list[float] = []
        self.largest: list[float] = []
        self.loads: list[Tensor] = []
        self._layer = 0

    def begin(self, batch: Any) -> Any:
        self.squares = [0.0] * len(self.squares)
        self.largest = [-math.inf] * len(self.largest)
        return batch

    def model(self, model: Any) -> Any:
        decoder = model.model
        modules = [decoder.embed_tokens, *decoder.layers]
        self.squares, self.largest = [0.0] * len(modules), [-math.inf] * len(decoder.layers)
        for index, module in enumerate(modules):
            module.register_forward_hook(lambda m, i, out, index=index: self._add(index, out))
        return model

    def _add(self, index: int, out: Any) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        self.squares[index] += hidden.detach().double().square().sum().item()

    def attention(self, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(q: Tensor, k: Tensor, *given: Any, **options: Any) -> Tensor:
            scale = options.get("scale") or q.shape[-1] ** -0.5
            scores = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT).detach() * scale
            tokens = q.shape[2]
            seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            largest = scores.masked_fill(~seen, -math.inf).max().item()
            self.largest[self._layer] = max(self.largest[self._layer], largest)
            self._layer = (self._layer + 1) % len(self.largest)
            return attend(q, k, *given, **options)

        return run


class _Loads(Routing):
    def __init__(self, watched: _Watched, *given: Any) -> None:
        super().__init__(*given)
        self._watched = watched

    def balance(self) -> None:
        self._watched.loads = [counts.double() for counts in self._counts.values()]
        super().balance()


def sampled_reference(table: dict[str, Any]) -> Samples:
    """The values of the last of at least two steps, by quantity, for the segments in order."""
    plain = {name: values for name, values in table.items() if name not in ("metrics", "faults")}
    plain = {**plain, "layout": {}}
    watched = _Watched()
    with pytest.MonkeyPatch.context() as patch:
        make, batch = parity_reference.reference_model, parity_reference.global_batch
        patch.setattr(parity_reference, "reference_model", lambda *given: watched.model(make(*given)))
        patch.setattr(parity_reference, "global_batch", lambda *given: watched.begin(batch(*given)))
        patch.setattr(parity_reference, "Routing", lambda *given: _Loads(watched, *given))
        attend = torch.nn.functional.scaled_dot_product_attention
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched.attention(attend))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            after = reference(plain)
        finally:
            torch.set_num_threads(threads)
    before = expected_record({**plain, "batch": {**plain["batch"], "steps": plain["batch"]["steps"] - 1}})
    return _values(table, before, after, watched)


def _values(table: dict[str, Any], before: Record, after: Record, watched: _Watched) -> Samples:
    _, view = prepare_rank(0, {**table, "layout": {}}, 1)
    model, segments = view.spec.model, view.spec.segments
    found: Samples = {}

    def norms(tensors: dict[str, Tensor]) -> list[float]:
        return [
            math.sqrt(sum(tensors[p.name].double().square().sum().item() for p in segment.parameters))
            for segment in segments
        ]

    found["gradient_norm"] = list(norms(after.gradients))
    found["weight_norm"] = list(norms(before.parameters))
    change = norms({name: after.parameters[name] - tensor for name, tensor in before.parameters.items()})
    found["update_ratio"] = [a / b for a, b in zip(change, norms(before.parameters), strict=True)]
    elements = table["batch"]["global_sequences"] * table["batch"]["sequence_length"] * model.hidden_size
    found["activation_rms"] = [*(math.sqrt(square / elements) for square in watched.squares), None]
    found["largest_score"] = [None, *watched.largest, None]
    if model.num_experts:
        loads = dict(zip((s.name for s in segments if s.moe), watched.loads, strict=True))
        each = [loads.get(segment.name) for segment in segments]
        found["expert_load_max"] = [None if x is None else (x.max() / x.mean()).item() for x in each]
        found["expert_load_min"] = [None if x is None else (x.min() / x.mean()).item() for x in each]
        found["expert_entropy"] = [
            None if x is None else torch.distributions.Categorical(x.double()).entropy().item() / math.log(len(x))
            for x in each
        ]
    return found
