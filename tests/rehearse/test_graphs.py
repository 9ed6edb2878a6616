"""A step is captured where each one is the same operations with the same numbers; what a replay would get wrong is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from fourfold.config import UserError, parse_run
from fourfold.rehearse.journal import RehearsalFault
from fourfold.rehearse.run import rehearse_graphs
from fourfold.runtime.executor import Executor
from fourfold.runtime.graph import FixedBatches, check_graphs
from fourfold.runtime.numbers import FixedNumbers
from fourfold.runtime.optimizer import ShardOptimizer
from tests.rehearse.layouts import FEW, LAYOUTS
from tests.rehearse.rehearsed import layout_spec
from tests.support.grid import others_are_rest
from tests.support.parity_runs import run_table
from tests.support.programs import make_spec

pytestmark = pytest.mark.grid(1)


def _is_static(name: str) -> bool:
    spec, optimizer = layout_spec(name)
    return (
        not spec.model.num_experts
        and not spec.document_mask
        and optimizer.name in ("adamw", "sgd")
        and spec.compute == "bf16"
        and not any(spec.layout.offload)
        and not spec.layout.offload_optimizer
    )


@pytest.mark.parametrize(
    "name",
    others_are_rest(filter(_is_static, LAYOUTS), FEW),
)
def test_static_steps_are_captured(name: str) -> None:
    assert all(rehearse_graphs(*layout_spec(name)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one rank, documents, full recompute", "a captured step would copy the same values again"),
        ("one rank, fp32", "`F b0 m0`: _to_copy: a captured step would copy the same values again"),
        ("experts", "a captured step cannot wait for the device"),
    ],
)
def test_others_are_not(name: str, message: str) -> None:
    with pytest.raises(RehearsalFault, match=message):
        rehearse_graphs(*layout_spec(name))


def _lr_of_host(original: Any) -> Callable[..., None]:
    return lambda self, gradient, lr, step, scale: original(self, gradient, 1e-4 * (step + 1), step, scale)


def _number_of_host(original: Any) -> Callable[..., None]:
    def begin(self: Executor, data: Any, lr: float) -> None:
        original(self, data, lr)
        self.numbers = replace(self.numbers, number=float(self.updates + 1))

    return begin


def _loads_again(original: Any) -> Callable[..., Any]:
    def set_data(self: FixedBatches, data: Any) -> None:
        original(self, data)
        self.load = data.load  # type: ignore[method-assign]

    return set_data


def _reads_norm(original: Any) -> Callable[..., None]:
    def clip(self: Executor, step: Any) -> None:
        original(self, step)
        self._total.item()

    return clip


def _more_kernels(original: Any) -> Callable[..., None]:
    def clip(self: Executor, step: Any) -> None:
        original(self, step)
        if self.updates:
            self._total.clone()

    return clip


@pytest.mark.parametrize(
    ("owner", "name", "make", "message"),
    [
        (ShardOptimizer, "update", _lr_of_host, "_fused_adamw_ in `U .*` is given"),
        (Executor, "begin", _number_of_host, "full in `C` is given"),
        (FixedBatches, "set", _loads_again, "instruction `L m0`: .* copy the same values again"),
        (Executor, "_clip_norm", _reads_norm, "instruction `C`: .* cannot wait"),
        (Executor, "_clip_norm", _more_kernels, "a step has .* where another has clone in `C`"),
    ],
    ids=["learning rate", "number of the update", "batches", "a wait", "a kernel more"],
)
def test_what_a_replay_would_get_wrong_is_found(owner: Any, name: str, make: Any, message: str) -> None:
    with patch.object(owner, name, make(getattr(owner, name))), pytest.raises(RehearsalFault, match=message):
        rehearse_graphs(*layout_spec("one rank"))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"document_mask": True}}, "its documents differ from step to step"),
        (
            {"optimizer": {"name": "lion"}},
            "the optimizer lion takes its learning rate from the host; adamw and sgd do not",
        ),
    ],
)
def test_a_run_that_cannot_be_captured_is_refused(sections: dict[str, Any], message: str) -> None:
    config = parse_run(run_table(**sections, run={"cuda_graphs": True}))
    spec = replace(layout_spec("one rank")[0], document_mask=config.data.document_mask)
    with pytest.raises(UserError, match=message):
        check_graphs(config, spec, torch.device("cuda"), "flash")
    with pytest.raises(UserError, match="there is no CUDA device; a value that works: false"):
        check_graphs(config, spec, torch.device("cpu"), "flash")
    check_graphs(parse_run(run_table(**sections)), spec, torch.device("cpu"), "flash")
    with pytest.raises(UserError, match="attention by tiled sends its tiles from the host"):
        check_graphs(config, replace(spec, document_mask=False), torch.device("cuda"), "tiled")


@pytest.mark.parametrize("away", [{"offload": "activations"}, {"offload_optimizer": True}], ids=str)
def test_a_run_that_copies_to_the_host_is_refused(away: dict[str, Any]) -> None:
    config = parse_run(run_table(run={"cuda_graphs": True}))
    spec = make_spec(**away)
    with pytest.raises(
        UserError, match=r"its copies to the host run beside the stream that is captured \(layout\.offload"
    ):
        check_graphs(config, spec, torch.device("cuda"), "flash")


def test_numbers_stay_where_they_are() -> None:
    spec, _ = layout_spec("one rank")
    make = FixedNumbers(spec.model, torch.device("cpu"))
    first = make(0.5, 1, (9,))
    first.loss.add_(5.0)
    second = make(0.25, 7, (3,))
    assert (float(second.lr), float(second.number)) == (0.25, 7.0)
    assert second.num_targets.tolist() == [3]
    assert not second.loss.any()
    for name in ("lr", "number", "num_targets", "loss"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()
