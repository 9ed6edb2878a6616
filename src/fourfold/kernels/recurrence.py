"""The gated delta rule, and that of Kimi Delta Attention: the formulas of `model/delta.py`, or the kernels of the package
flash-linear-attention (Yang & Zhang 2024) where it is installed. A processor has the formulas alone.

The package is called by its public function, and its backward by autograd, so that any of its versions will do. It forgets what was
before a document by a decay that leaves nothing of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product

import torch
from torch import Tensor

from fourfold.kernels.backend import Backend, is_installed
from fourfold.kernels.check import BOUNDS, row_faults
from fourfold.kernels.timed import TimedKind
from fourfold.model import delta, torch_operations
from fourfold.model.operations import RecurrenceKernels
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec

CHECKED_TOKENS = 192
FORGOTTEN = -100.0
"""The logarithm of the decay in front of a document: nothing of fp32 is left, and sums of it stay exact enough."""


@dataclass(frozen=True)
class RecurrenceCase:
    """A run's delta rules on one rank: `rows` sequences of `tokens`, heads of `width` and of `value` numbers. `by_channel`: of each
    rule that layers have, whether channels decay by themselves, not heads; `strongest`: what writing strengths stay below."""

    rows: int
    tokens: int
    key_heads: int
    heads: int
    width: int
    value: int
    dtype: torch.dtype
    device: torch.device
    by_channel: tuple[bool, ...] = (False,)
    strongest: float = 1.0


class FormulaRecurrence:
    """The formulas, called as kernels are."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, positions: Tensor | None) -> Tensor:
        out: Tensor = delta.forward(torch_operations, _upcast(q, k, v, g, b), positions)
        return out.to(v.dtype)

    @staticmethod
    def backward(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, ...]:
        found = delta.backward(torch_operations, _upcast(grad), _upcast(q, k, v, g, b), positions)
        return tuple(x.to(like.dtype) for x, like in zip(found, (q, k, v, g, b), strict=True))


class PackageRecurrence:
    """flash-linear-attention's kernels."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, positions: Tensor | None) -> Tensor:
        if g.dim() == q.dim():
            rule = import_module("fla.ops.kda").chunk_kda
        else:
            rule = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
        copies = v.shape[2] // q.shape[2]
        if copies > 1:
            q, k = (x.repeat_interleave(copies, 2) for x in (q, k))
        if positions is not None:
            g = g.masked_fill((positions == 0).view(*positions.shape, *[1] * (g.dim() - 2)), FORGOTTEN)
        out: Tensor = rule(q, k, v, g, b.to(v.dtype), scale=1.0, output_final_state=False)[0]
        return out

    @staticmethod
    def backward(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v, g, b)]
        with torch.enable_grad():
            out = PackageRecurrence.forward(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], positions)
        return torch.autograd.grad(out, leaves, grad.to(out.dtype))


def _upcast(*given: Tensor) -> list[Tensor]:
    return [torch_operations.upcast(x) for x in given]


def _package_refuses(case: RecurrenceCase) -> str | None:
    if case.device.type != "cuda":
        return "it runs on CUDA"
    if case.dtype not in (torch.bfloat16, torch.float16):
        return "its kernels are of 16 bits"
    return None if is_installed("fla") else "the package flash-linear-attention is not installed"


FORMULA: Backend[RecurrenceCase] = Backend("formula")
PACKAGE = Backend("fla", {"recurrence": PackageRecurrence()}, _package_refuses, title="flash-linear-attention")
BACKENDS = {backend.name: backend for backend in (FORMULA, PACKAGE)}
"""By name, in the order that decides between equals."""


def recurrence_of(backend: Backend[RecurrenceCase]) -> RecurrenceKernels:
    return backend.operations.recurrence or FormulaRecurrence()


def case_of(spec: StepSpec, device: torch.device) -> RecurrenceCase:
    """The recurrence of one microbatch on one rank."""
    layout, model = spec.layout, spec.model
    heads = (model.delta_key_heads // layout.tp, model.delta_value_heads // layout.tp)
    sizes = (model.delta_key_dim, model.delta_value_dim)
    tokens = layout.sequence_length // layout.cp
    rules = tuple(dict.fromkeys(each.mixer == _BY_CHANNEL for each in model.layer_configs if each.mixer in _RULES))
    strongest = 2.0 if model.delta_negative_eigenvalues else 1.0
    rows, dtype = layout.microbatch_sequences, torch_dtype(spec.compute)
    return RecurrenceCase(rows, tokens, *heads, *sizes, dtype, device, rules, strongest)


_BY_CHANNEL = "kimi_delta"
_RULES = ("gated_delta", _BY_CHANNEL)


def _small(case: RecurrenceCase) -> RecurrenceCase:
    return replace(case, rows=1, tokens=min(case.tokens, CHECKED_TOKENS))


def timed(backend: Backend[RecurrenceCase], case: RecurrenceCase) -> Callable[[], object]:
    """A forward and a backward of the case."""
    kernels, given = recurrence_of(backend), [_inputs(case, each) for each in case.by_channel]
    return lambda: [_results(kernels, inputs, None) for inputs in given]


def _results(kernels: RecurrenceKernels, inputs: list[Tensor], positions: Tensor | None) -> list[Tensor]:
    """The output, and gradients of q, k, v, g and b. `inputs`: grad, q, k, v, g, b."""
    grad, q, k, v, g, b = inputs
    return [kernels.forward(q, k, v, g, b, positions), *kernels.backward(grad, q, k, v, g, b, positions)]


def _faults(backend: Backend[RecurrenceCase], case: RecurrenceCase) -> Iterator[str]:
    kernels = recurrence_of(backend)
    number = torch.arange(case.tokens, device=case.device)
    cut = case.tokens // 3
    documents = torch.where(number < cut, number, number - cut).expand(case.rows, -1)
    names = ("gradient of q", "gradient of k", "gradient of v", "gradient of decays", "gradient of strengths")
    for inputs, positions in product((_inputs(case, each) for each in case.by_channel), (None, documents)):
        exact = [x.double() for x in inputs]
        right, found = _results(FormulaRecurrence(), exact, positions), _results(kernels, inputs, positions)
        for name, ours, theirs in zip(("output", *names), found, right, strict=True):
            yield from row_faults(name, ours.flatten(1), theirs.flatten(1), BOUNDS[case.dtype])


def _inputs(case: RecurrenceCase, by_channel: bool) -> list[Tensor]:
    """Seeded grad, q, k, v, g, b."""
    generator = torch.Generator(case.device).manual_seed(0)

    def draw(heads: int, *width: int, dtype: torch.dtype = case.dtype) -> Tensor:
        shape = (case.rows, case.tokens, heads, *width)
        return torch.randn(shape, generator=generator, dtype=dtype, device=case.device)

    sums = torch.promote_types(case.dtype, torch.float32)
    q, k = (torch.nn.functional.normalize(draw(case.key_heads, case.width), dim=-1) for _ in range(2))
    grad, v = draw(case.heads, case.value), draw(case.heads, case.value)
    decays = draw(case.heads, *[case.width] * by_channel, dtype=sums)
    return [grad, q, k, v, -decays.abs() / 8, case.strongest * draw(case.heads, dtype=sums).sigmoid()]


KIND = TimedKind(
    work="gated delta rule",
    name="recurrence",
    option="recurrence_backend",
    file="recurrence.json",
    backends=BACKENDS,
    case_of=case_of,
    small=_small,
    faults=_faults,
    timed=timed,
    refuses=lambda model: (
        None if any(each.mixer in _RULES for each in model.layer_configs) else "the model has no recurrence"
    ),
)
