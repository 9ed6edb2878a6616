"""oneDNN's matmuls are those of fp64 but for fp32's rounding, and are taken by kind where they are right and faster."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fourfold.kernels.matmul import libraries as matmuls
from fourfold.kernels.matmul.libraries import LibrarySeconds
from fourfold.model import torch_onednn, torch_operations
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, MATMULS, WEIGHT_GRADIENT
from fourfold.model.work import Gemm
from fourfold.program import lower_pipeline
from tests.rehearse.rehearsed import layout_spec
from tests.support.programs import deepseek, make_spec

SIZE = st.integers(1, 70)


def _random(seed: int, *sizes: int, strided: bool = False) -> Tensor:
    """Numbers of a seed; `strided`: a view into a larger tensor, rows apart."""
    generator = torch.Generator().manual_seed(seed)
    if not strided:
        return torch.randn(sizes, generator=generator)
    return torch.randn(sizes[0], 2 * sizes[1], generator=generator)[:, : sizes[1]]


def _close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(tokens=SIZE, inputs=SIZE, outputs=SIZE, seed=st.integers(0, 2**31), strided=st.booleans(), fresh=st.booleans())
def test_matmuls_are_those_of_fp64(
    tokens: int, inputs: int, outputs: int, seed: int, strided: bool, fresh: bool
) -> None:
    x, grad = _random(seed, tokens, inputs, strided=strided), _random(seed + 1, tokens, outputs, strided=strided)
    weight, residual = _random(seed + 2, outputs, inputs), _random(seed + 3, tokens, outputs, strided=strided)
    exact_x, exact_grad, exact_weight = x.double(), grad.double(), weight.double()
    forward, backward = exact_x @ exact_weight.t(), exact_grad @ exact_weight
    _close(torch_onednn.linear(x, weight), forward)
    _close(torch_onednn.linear(x, weight, residual[0].contiguous()), forward + residual[0].double())
    _close(torch_onednn.linear_add(residual, x, weight), forward + residual.double())
    _close(torch_onednn.matmul(grad, weight), backward)
    into = torch.full((tokens, inputs), float("nan"))
    torch_onednn.matmul_into(grad, weight, into)
    _close(into, backward)
    buffer = _random(seed + 4, 1, outputs * inputs + 2)[0]
    sums = buffer[1:-1].view(outputs, inputs)
    edges, before = buffer[[0, -1]].clone(), 0.0 if fresh else sums.double()
    torch_onednn.accumulate(sums, grad, x, fresh)
    _close(sums, before + exact_grad.t() @ exact_x)
    assert torch.equal(buffer[[0, -1]], edges)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_formats_and_no_rows_go_torchs_way(dtype: torch.dtype) -> None:
    x, weight = torch.ones(3, 4, dtype=dtype), torch.full((5, 4), 1 / 3, dtype=dtype)
    nothing, grad = torch.empty(0, 4), torch.zeros(5, 4)
    with patch.object(torch_onednn, "_entrance", side_effect=AssertionError("oneDNN is entered")):
        assert torch.equal(torch_onednn.linear(x, weight), torch_operations.linear(x, weight))
        assert torch.equal(torch_onednn.matmul(x, weight.t()), torch_operations.matmul(x, weight.t()))
        assert torch_onednn.linear(nothing, torch.ones(5, 4)).shape == (0, 5)
        torch_onednn.accumulate(grad, torch.empty(0, 5), nothing, fresh=True)
    assert not grad.any()


def _rounded(original: Any) -> Callable[..., Tensor]:
    """A matmul after an implicit conversion to bf16."""
    return lambda x, weight, bias=None: original(x.bfloat16().float(), weight.bfloat16().float(), bias)


def _kept(original: Any) -> Callable[..., None]:
    return lambda grad, grad_output, inputs, fresh: original(grad, grad_output, inputs, True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("_multiply", _rounded, "its forward matmul is off by"),
        ("accumulate", _kept, "its weight gradient matmul is off by"),
        ("is_available", lambda _: lambda: False, "has no oneDNN"),
    ],
)
def test_a_library_that_is_wrong_here_is_found(name: str, change: Callable[[Any], Any], message: str) -> None:
    assert matmuls.problem_of_onednn() is None
    with patch.object(torch_onednn, name, change(getattr(torch_onednn, name))):
        assert message in str(matmuls.problem_of_onednn())


def test_the_matmuls_of_a_step_are_those_of_its_work() -> None:
    """One head and four kinds of matmuls a block; an input gradient and a weight gradient to each forward matmul."""
    spec, _ = layout_spec("one rank")
    program = lower_pipeline(spec)[0]
    found = matmuls.step_matmuls(program)
    gemms = [item for each in program.instructions for item in each.work.items if isinstance(item, Gemm)]
    assert sum(gemm.flops for gemm in gemms) == matmuls.total_flops(found)
    counts = {kind: sum(found[kind].values()) for kind in found}
    assert counts[FORWARD] + counts[INPUT_GRADIENT] == 2 * counts[WEIGHT_GRADIENT]
    assert all(gemm.accumulates == (kind == WEIGHT_GRADIENT) for kind in found for gemm in found[kind])


def test_the_matmuls_of_passes_in_parts_are_those_of_unsplit_passes() -> None:
    """Shared experts are multiplied by the middle part, forward and backward."""
    layout: dict[str, Any] = {"model": deepseek(), "dp_shard": 2, "ep": 2, "accumulation": 2, "recompute": "full:1"}
    unsplit, in_parts = (lower_pipeline(make_spec(**layout, overlap_experts=parts))[0] for parts in (False, True))
    assert len(in_parts.instructions) > len(unsplit.instructions)
    assert matmuls.step_matmuls(in_parts) == matmuls.step_matmuls(unsplit)


def test_each_kind_is_timed_on_its_own_matmuls_by_both_libraries() -> None:
    gemms = {
        FORWARD: Counter({Gemm(8, 5, 3): 2, Gemm(8, 7, 3): 1}),
        INPUT_GRADIENT: Counter({Gemm(10**6, 4096, 4096): 1}),
        WEIGHT_GRADIENT: Counter[Gemm](),
    }
    calls: list[tuple[Gemm, str]] = []
    with patch.object(matmuls, "_call", lambda kind, gemm: lambda library: calls.append((gemm, library.__name__))):
        found = matmuls.measure(gemms, lambda call: float(call() is None))
    assert found == {
        FORWARD: LibrarySeconds(3.0, 3.0),
        INPUT_GRADIENT: LibrarySeconds(1.0, 1.0),
        WEIGHT_GRADIENT: LibrarySeconds(0.0, 0.0),
    }
    both = [torch_operations.__name__, torch_onednn.__name__]
    timed = [Gemm(8, 5, 3), Gemm(8, 7, 3)]
    assert calls[:4] == [(gemm, library) for library in both for gemm in timed], (
        "a library computes all of them in its turn"
    )
    assert [gemm.rows for gemm, _ in calls[-2:]] == [64, 64], "of fewer tokens"


def test_only_kinds_that_are_clearly_faster_are_taken() -> None:
    seconds = {
        FORWARD: LibrarySeconds(1.0, 0.5),
        INPUT_GRADIENT: LibrarySeconds(1.0, 0.99),
        WEIGHT_GRADIENT: LibrarySeconds(0.0, 0.0),
    }
    assert matmuls.faster_by_onednn(seconds) == (FORWARD,)
    chosen = matmuls.by_onednn(torch_operations, (FORWARD,))
    assert (chosen.linear, chosen.linear_add) == (torch_onednn.linear, torch_onednn.linear_add)
    assert (chosen.matmul, chosen.accumulate, chosen.silu) == (
        torch_operations.matmul,
        torch_operations.accumulate,
        torch_operations.silu,
    )


def test_every_kind_names_operations() -> None:
    assert all(hasattr(torch_operations, name) for kind in MATMULS.values() for name in kind)
