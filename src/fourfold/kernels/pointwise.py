"""SwiGLU and rotary position embedding: the formulas of `model/feed_forward.py` and `model/rope.py`, operator by operator, or
kernels that read and write every number once. A processor gains nothing by those, and compares nothing.

Results are SwiGLU, that of the experts times a weight of each row, their gradients, and rotations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fourfold.kernels.backend import Backend, LazyModule, triton_refuses
from fourfold.kernels.check import BOUNDS, row_blocks, row_faults
from fourfold.kernels.timed import TimedKind
from fourfold.model.experts.swiglu import weighted
from fourfold.model.operations import Operations
from fourfold.model.rope import rotate_, rotate_into
from fourfold.model.swiglu import swiglu, swiglu_again, swiglu_backward_
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec

CHECKED_ROWS = 64


@dataclass(frozen=True)
class PointwiseCase:
    """A microbatch on one rank: `rows` tokens, `ffn` columns of the gate and as many of up, `heads` of `width` that are rotated."""

    rows: int
    ffn: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device


FORMULA: Backend[PointwiseCase] = Backend("formula")
TRITON: Backend[PointwiseCase] = Backend(
    "triton", {"pointwise": LazyModule("fourfold.kernels.pointwise_triton")}, lambda case: triton_refuses(case.device)
)
BACKENDS = {backend.name: backend for backend in (FORMULA, TRITON)}
"""By name, in the order that decides between equals."""


def case_of(spec: StepSpec, device: torch.device) -> PointwiseCase:
    """A block of one microbatch on one rank."""
    layout, model = spec.layout, spec.model
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    heads = -(-(model.num_heads + model.num_kv_heads) // layout.tp)
    return PointwiseCase(
        tokens, -(-model.ffn_size // layout.tp), heads, model.head_dim, torch_dtype(spec.compute), device
    )


def _small(case: PointwiseCase) -> PointwiseCase:
    return replace(case, rows=min(case.rows, CHECKED_ROWS))


def timed(backend: Backend[PointwiseCase], case: PointwiseCase) -> Callable[[], object]:
    """SwiGLU, the same again with its backward, a rotation in place, and its inverse into another array."""
    ops, (grad, gate_up, x, cos, sin) = backend.operations, _inputs(case)

    def step() -> object:
        swiglu(ops, gate_up)
        activated, _ = swiglu_again(ops, gate_up)
        swiglu_backward_(ops, [grad, activated], gate_up)
        rotate_(ops, x, cos, sin)
        turned = torch.empty_like(x)
        rotate_into(ops, x, turned, cos, sin, inverse=True)
        return turned

    return step


def _faults(backend: Backend[PointwiseCase], case: PointwiseCase) -> Iterator[str]:
    ops, given = backend.operations, _inputs(case)
    grad, gate_up, x, cos, sin = given
    activated, again = swiglu_again(ops, gate_up)
    found = {"SwiGLU": swiglu(ops, gate_up), "SwiGLU again": again, "gradient of SwiGLU": gate_up.clone()}
    swiglu_backward_(ops, [grad.clone(), activated], found["gradient of SwiGLU"])
    for rows in row_blocks(case.rows):
        leaf = gate_up[rows].double().requires_grad_()
        gate, up = leaf.chunk(2, dim=-1)
        right = torch.nn.functional.silu(gate) * up
        (right_gradient,) = torch.autograd.grad(right, leaf, grad[rows].double())
        for (name, ours), theirs in zip(found.items(), (right, right, right_gradient), strict=True):
            yield from row_faults(name, ours[rows], theirs.detach(), BOUNDS[case.dtype])
    yield from _weighted_faults(ops, case)
    for interleave in (False, True):
        for inverse in (False, True):
            turned = x.clone()
            rotate_(ops, turned, cos, sin, interleave, inverse)
            results = {"rotary embedding": turned}
            if not interleave:
                results["rotary embedding into another array"] = beside = torch.empty_like(x)
                rotate_into(ops, x, beside, cos, sin, inverse)
            for rows in row_blocks(case.rows):
                exact, cosine, sine = x[:, rows].double(), cos[rows].double(), sin[rows].double()
                first, second = (exact[..., 0::2], exact[..., 1::2]) if interleave else exact.chunk(2, dim=-1)
                sine = -sine if inverse else sine
                parts = [first * cosine - second * sine, second * cosine + first * sine]
                wanted = torch.stack(parts, -1).flatten(-2) if interleave else torch.cat(parts, -1)
                for name, ours in results.items():
                    yield from row_faults(name, ours[:, rows].flatten(0, -2), wanted.flatten(0, -2), BOUNDS[case.dtype])


def _weighted_faults(ops: Operations, case: PointwiseCase) -> Iterator[str]:
    """Faults of the experts' SwiGLU times a weight of each row, and of its backward where it has kernels."""
    grad, gate_up = _inputs(case)[:2]
    weights = torch.linspace(0.1, 1, len(grad), dtype=grad.dtype, device=grad.device)
    given = gate_up.clone()
    found = {"weighted SwiGLU": weighted(ops, gate_up, weights)}
    if ops.pointwise is not None:
        again, grad_weights = ops.pointwise.weighted_backward_(grad.clone(), given, weights)
        found |= {"weighted SwiGLU again": again, "gradient of weighted SwiGLU": given}
        found["gradient of the weights of rows"] = grad_weights.unsqueeze(-1)
    for rows in row_blocks(case.rows):
        leaves = [each[rows].double().requires_grad_() for each in (gate_up, weights)]
        gate, up = leaves[0].chunk(2, dim=-1)
        right = torch.nn.functional.silu(gate) * up * leaves[1].unsqueeze(-1)
        of_inputs, of_weights = torch.autograd.grad(right, leaves, grad[rows].double())
        exact = [right.detach(), right.detach(), of_inputs]
        for (name, ours), theirs in zip(found.items(), exact, strict=False):
            yield from row_faults(name, ours[rows], theirs, BOUNDS[case.dtype])
        if ops.pointwise is not None:
            name = "gradient of the weights of rows"
            yield from row_faults(
                name, found[name][rows].flatten().unsqueeze(0), of_weights.unsqueeze(0), BOUNDS[case.dtype]
            )


def _inputs(case: PointwiseCase) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Seeded: a gradient [rows, ffn], gate and up [rows, 2 ffn], heads [1, rows, heads, width], cosines and sines [rows, 1,
    width / 2]."""
    generator = torch.Generator(case.device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=case.dtype, device=case.device)

    grad, gate_up = draw(case.rows, case.ffn), draw(case.rows, 2 * case.ffn)
    x, angle = draw(1, case.rows, case.heads, case.width), draw(case.rows, 1, case.width // 2).float()
    return grad, gate_up, x, angle.cos().to(case.dtype), angle.sin().to(case.dtype)


KIND = TimedKind(
    work="SwiGLU and rotary embedding",
    name="pointwise",
    option="pointwise_backend",
    file="pointwise.json",
    backends=BACKENDS,
    case_of=case_of,
    small=_small,
    faults=_faults,
    timed=timed,
)
