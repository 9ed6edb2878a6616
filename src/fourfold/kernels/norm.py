"""RMSNorm: the formulas of `model/norm.py`, operator by operator, or kernels that read and write every number once. A processor
gains nothing by those, and compares nothing.

Results are output and the gradient of x on rows of the run's width; and the weight's gradient, which may be off by no more than
sums of fp32 are, whatever the format of its rows: it is added to others that are not rounded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fourfold.kernels.backend import Backend, LazyModule, triton_refuses
from fourfold.kernels.check import BOUNDS, row_blocks, row_faults
from fourfold.kernels.timed import TimedKind
from fourfold.model import norm, torch_operations
from fourfold.model.operations import NormKernels
from fourfold.model.tiled_attention import accumulation_dtype
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.program.spec import StepSpec

_ATEN: Any = torch.ops.aten
WIDEST = 16384
"""Numbers of a row that a program of the Triton kernels has in its registers."""
CHECKED_ROWS = 64
WEIGHT_BOUNDS = {torch.float64: 1e-10}
WEIGHT_BOUND = 2e-4
"""The bound of formats other than fp64. A gradient that passes through bf16 is off by 1e-3."""


@dataclass(frozen=True)
class NormCase:
    """A run's norms of hidden states on one rank: `rows` tokens of a microbatch, each of `width` numbers."""

    rows: int
    width: int
    dtype: torch.dtype
    device: torch.device
    eps: float


class FormulaNorms:
    """The formulas, called as kernels are."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, scale = norm.rms_norm(torch_operations, x, weight, eps)
        return out, scale

    @staticmethod
    def add_forward(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return FormulaNorms.forward(x.add_(residual), weight, eps)

    @staticmethod
    def again(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
        out: Tensor = norm.apply_rms(torch_operations, x, scale, weight, eps)
        return out

    @staticmethod
    def backward(
        grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        summed = torch.zeros(weight.shape, dtype=scale.dtype, device=x.device)
        grad_x: Tensor = norm.rms_norm_backward(torch_operations, grad, x, scale, Weight(weight, summed), residual)
        return grad_x, summed


class TorchNorms:
    """PyTorch's fused operator."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        out, scale = _ATEN._fused_rms_norm(x, weight.shape, weight, eps)
        return out, scale

    @staticmethod
    def add_forward(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return TorchNorms.forward(x.add_(residual), weight, eps)

    @staticmethod
    def again(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
        return TorchNorms.forward(x, weight, eps)[0]

    @staticmethod
    def backward(
        grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """PyTorch's operator gives the weight's gradient in the weight's format. It is computed apart here, in that of sums."""
        grad_x, _ = _ATEN._fused_rms_norm_backward(grad, x, weight.shape, scale, weight, [True, False])
        terms = grad.to(accumulation_dtype(x)) * x
        return grad_x if residual is None else grad_x.add_(residual), terms.mul_(scale).sum(0)


def _torch_refuses(case: NormCase) -> str | None:
    if case.device.type != "cuda":
        return "it runs on CUDA"
    found = hasattr(_ATEN, "_fused_rms_norm") and hasattr(_ATEN, "_fused_rms_norm_backward")
    return None if found else "this torch has no _fused_rms_norm"


def _triton_refuses(case: NormCase) -> str | None:
    if case.device.type == "cuda" and case.width > WIDEST:
        return f"its rows have {WIDEST} numbers at most"
    return triton_refuses(case.device)


FORMULA: Backend[NormCase] = Backend("formula")
TORCH = Backend("torch", {"norms": TorchNorms()}, _torch_refuses)
TRITON = Backend("triton", {"norms": LazyModule("fourfold.kernels.norm_triton")}, _triton_refuses)
BACKENDS = {backend.name: backend for backend in (FORMULA, TORCH, TRITON)}
"""By name, in the order that decides between equals."""


def norms_of(backend: Backend[NormCase]) -> NormKernels:
    return backend.operations.norms or FormulaNorms()


def case_of(spec: StepSpec, device: torch.device) -> NormCase:
    """The norm of a block's hidden states of one microbatch on one rank."""
    layout, model = spec.layout, spec.model
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    rows = tokens // layout.tp if layout.sequence_parallel else tokens
    return NormCase(rows, model.hidden_size, torch_dtype(spec.compute), device, model.norm_eps)


def _small(case: NormCase) -> NormCase:
    return replace(case, rows=min(case.rows, CHECKED_ROWS))


def timed(backend: Backend[NormCase], case: NormCase) -> Callable[[], object]:
    """One forward with and one without a residual, and a backward with one, of the case."""
    norms, (grad, x, weight, residual) = norms_of(backend), _inputs(case)

    def step() -> object:
        _, scale = norms.forward(x, weight, case.eps)
        norms.add_forward(residual, grad.clone(), weight, case.eps)
        return norms.backward(grad.clone(), x, scale, weight, residual)

    return step


def _faults(backend: Backend[NormCase], case: NormCase) -> Iterator[str]:
    norms, (grad, x, weight, residual) = norms_of(backend), _inputs(case)
    out, scale = norms.forward(x, weight, case.eps)
    again = norms.again(x, scale, weight, case.eps)
    if not torch.equal(out, again):
        yield "its output has other bits when it is computed again"
    summed = x.clone()
    added, _ = norms.add_forward(residual, summed, weight, case.eps)
    grad_x, grad_weight = norms.backward(grad.clone(), x, scale, weight, residual)
    bound = BOUNDS[case.dtype]
    weight_bound = WEIGHT_BOUNDS.get(case.dtype, WEIGHT_BOUND)
    sums = torch.zeros_like(weight, dtype=torch.float64)
    for rows in row_blocks(case.rows):
        exact = [each.double() for each in (grad[rows], x[rows], weight, residual[rows])]
        right_out, right_x, right_weight = _exact(exact, case.eps)
        right_added = _exact([exact[0], summed[rows].double(), *exact[2:]], case.eps)[0]
        sums += right_weight
        compared = [
            ("output", out[rows], right_out),
            ("sum with the residual", summed[rows], exact[1] + exact[3]),
            ("output of a sum", added[rows], right_added),
            ("gradient", grad_x[rows], right_x),
        ]
        for each in compared:
            yield from row_faults(*each, bound)
    yield from row_faults("gradient of the weight", grad_weight.unsqueeze(0), sums.unsqueeze(0), weight_bound)


def _exact(inputs: list[Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of x with the residual's, gradient of the weight, by PyTorch's autograd."""
    grad, x, weight, residual = inputs
    x, weight = leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    grad_x, grad_weight = torch.autograd.grad(out, leaves, grad)
    return out.detach(), grad_x + residual, grad_weight


def _inputs(case: NormCase) -> list[Tensor]:
    """Seeded grad, x, weight, residual."""
    generator = torch.Generator(case.device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=case.dtype, device=case.device)

    grad, x, residual = (draw(case.rows, case.width) for _ in range(3))
    return [grad, x, 1 + draw(case.width) / 8, residual]


KIND = TimedKind(
    work="norms",
    name="norms",
    option="norm_backend",
    file="norms.json",
    backends=BACKENDS,
    case_of=case_of,
    small=_small,
    faults=_faults,
    timed=timed,
    refuses=lambda model: None if model.norm == "rms" else "the model has LayerNorms",
)
