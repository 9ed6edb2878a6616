"""Attention: the back ends, and the cases that each takes; the check; the call that is timed. A processor has one that is fast, and
compares nothing.

Torch's flash kernels are one pair of operators, behind which torch's registry can put FlashAttention 3 or 4 where their packages
are installed. FlexAttention is none of them: it has no backward that takes a log-sum-exp over keys of other calls.

Results are output, log-sum-exp and gradients. Gradients are compared with those of the output that the back end gave itself: what
bf16 rounds off that moves a row of the gradient of queries that is a difference of large terms by up to a tenth, whichever kernel
computes it. The run's own shape runs in full, and one row's first and last group of heads are compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

import torch
import torch.nn.attention
from torch import Tensor

from fourfold.kernels.attention import libraries, package
from fourfold.kernels.backend import Backend, LazyModule, is_installed, triton_refuses
from fourfold.kernels.check import BOUNDS, row_faults
from fourfold.kernels.timed import TimedKind
from fourfold.model import torch_attention
from fourfold.model.layers import windows_of
from fourfold.model.tiled_attention import Attended, Gradients
from fourfold.model.torch_attention import TILED as TILED_KERNELS
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.visible import Visible
from fourfold.program.spec import StepSpec

CHECKED_TOKENS, CHECKED_HEADS, CHECKED_ROWS = 512, 2, 2
"""The largest case that is checked in full: tokens of a row, heads of keys, rows. fp64 is slow on most devices."""
SCALE_OF_WIDTH = -0.5


@dataclass(frozen=True)
class AttentionCase:
    """A run's attention in one call: `batch` rows of `queries` tokens and as many keys, causal. `width`: of a head's
    queries and keys; `value_width`: of its values. `documents`: rows hold several of them; `rectangles`: there are also calls in
    which every query sees every key, as under context parallelism; `windows`: and calls with these sliding windows."""

    batch: int
    queries: int
    heads: int
    kv_heads: int
    width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device
    documents: bool = False
    rectangles: bool = False
    windows: tuple[int, ...] = ()


def _is_half(case: AttentionCase) -> bool:
    return case.dtype in (torch.bfloat16, torch.float16)


def _refused(
    case: AttentionCase, *, half: bool = False, masks: bool = True, width: int = 1, widest: int = 256
) -> str | None:
    """Why a kernel on CUDA of these limits does not take the case. `masks`: whether it takes documents and windows; `width`: what
    head sizes are multiples of."""
    if case.device.type != "cuda":
        return "it runs on CUDA"
    if half and not _is_half(case):
        return "it takes bf16 and fp16"
    if case.documents and not masks:
        return "it takes no documents"
    if case.windows and not masks:
        return "it takes no sliding windows"
    if case.width % width or case.value_width % width:
        return f"its head sizes are multiples of {width}"
    if max(case.width, case.value_width) > widest:
        return f"its heads have {widest} elements at most"
    return None


def _flash_refuses(case: AttentionCase) -> str | None:
    if case.device.type == "cpu":
        return "on a CPU it takes one document a call" if case.documents else None
    return _refused(case, half=True)


def _restore_flash() -> None:
    """Torch's own kernels behind its flash operators."""
    restore: Any = getattr(torch.nn.attention, "restore_flash_attention_impl", None)
    if restore is not None:
        restore(_raise_warn=False)


def _backend(
    name: str,
    attend: Callable[..., Attended],
    attend_backward: Callable[..., Gradients],
    refuses: Callable[[AttentionCase], str | None],
    activate: Callable[[], None] = lambda: None,
) -> Backend[AttentionCase]:
    """The functions: as `Operations` has them."""
    return Backend(name, {"attend": attend, "attend_backward": attend_backward}, refuses, activate)


def _registered(name: str, implementation: str, module: str) -> Backend[AttentionCase]:
    """An implementation in torch's registry of flash attention."""

    def refuses(case: AttentionCase) -> str | None:
        if implementation not in getattr(torch.nn.attention, "list_flash_attention_impls", list)():
            return f"this torch has no {implementation} in its registry"
        return _refused(case, half=True) or (None if is_installed(module) else f"{module} is not installed")

    def activate() -> None:
        torch.nn.attention.activate_flash_attention_impl(implementation)

    return _backend(name, torch_attention.flash, torch_attention.flash_backward, refuses, activate)


def _package_refuses(case: AttentionCase) -> str | None:
    return _refused(case, half=True) or (None if is_installed(package.NAME) else f"{package.NAME} is not installed")


def _triton_refuses(case: AttentionCase) -> str | None:
    return _refused(case) or triton_refuses(case.device)


_TRITON = LazyModule("fourfold.kernels.attention.triton_attention")
FLASH = _backend(*torch_attention.FLASH, _flash_refuses, _restore_flash)
TILED = _backend(*TILED_KERNELS, lambda case: None)
BACKENDS: Mapping[str, Backend[AttentionCase]] = {
    backend.name: backend
    for backend in (
        FLASH,
        _registered("flash-3", "FA3", "flash_attn_interface"),
        _registered("flash-4", "FA4", "flash_attn.cute"),
        _backend(
            "cudnn",
            libraries.cudnn,
            libraries.cudnn_backward,
            lambda case: _refused(case, half=True, masks=False, width=8),
        ),
        _backend(
            "efficient",
            libraries.efficient,
            libraries.efficient_backward,
            lambda case: _refused(case, masks=False, width=8),
        ),
        _backend("flash-attn", package.flash_attn, package.flash_attn_backward, _package_refuses),
        _backend(
            "triton",
            lambda *given: _TRITON.attend_rows(*given),
            lambda *given: _TRITON.attend_rows_backward(*given),
            _triton_refuses,
        ),
        TILED,
    )
}
"""By name, in the order that decides between equals: libraries first."""


def case_of(spec: StepSpec, device: torch.device) -> AttentionCase:
    """The attention of one microbatch on one rank. On a processor documents are calls of their own."""
    layout, model = spec.layout, spec.model
    ranks = layout.tp * layout.cp_ulysses
    heads = max(1, model.num_heads // ranks)
    return AttentionCase(
        batch=layout.microbatch_sequences,
        queries=layout.sequence_length // layout.cp_ring,
        heads=heads,
        kv_heads=gcd(heads, max(1, model.num_kv_heads // ranks)),
        width=model.head_dim,
        value_width=model.value_head_dim or model.head_dim,
        dtype=torch_dtype(spec.compute),
        device=device,
        documents=spec.document_mask and device.type != "cpu",
        rectangles=layout.cp_ring > 1,
        windows=tuple(sorted(windows_of(model, layout.sequence_length))) if device.type != "cpu" else (),
    )


def timed(backend: Backend[AttentionCase], case: AttentionCase) -> Callable[[], object]:
    """One forward and backward on the case's own shapes."""
    scale = case.width**SCALE_OF_WIDTH
    documents = Visible.documents(case.batch * lengths_of(case)) if case.documents else None
    ops, (grad, q, k, v) = backend.operations, _inputs(case, case.queries)

    def step() -> object:
        for window in (None, *case.windows):
            out, lse = ops.attend(q, k, v, True, scale, documents, window)
            gradients = ops.attend_backward(grad, q, k, v, out, lse, True, scale, documents, window)
        return gradients

    return step


def lengths_of(case: AttentionCase) -> list[int]:
    """Documents of a row of the case: half of what is left each time, which is uneven, down to one token."""
    left, lengths = case.queries, []
    while left:
        lengths.append(left - left // 2)
        left //= 2
    return lengths


def _small(case: AttentionCase) -> AttentionCase:
    kv_heads = min(case.kv_heads, CHECKED_HEADS)
    return replace(
        case,
        batch=min(case.batch, CHECKED_ROWS),
        queries=min(case.queries, CHECKED_TOKENS),
        kv_heads=kv_heads,
        heads=kv_heads * (case.heads // case.kv_heads),
    )


def _faults(backend: Backend[AttentionCase], case: AttentionCase) -> Iterator[str]:
    """Results that are off by more than the bound. A large case is computed in full; of it the last row's heads of the first and of
    the last keys are compared, in fp32 where the bound allows it, tile by tile."""
    ops = backend.operations
    bound, scale = BOUNDS[case.dtype], case.width**SCALE_OF_WIDTH
    small = case == _small(case)
    reference = torch.float64 if small or case.dtype in (torch.float64, torch.float32) else torch.float32
    for what, causal, documents, window, queries in _calls(case):
        grad, q, k, v = _inputs(case, queries)
        out, lse = ops.attend(q, k, v, causal, scale, documents, window)
        gradients = ops.attend_backward(grad, q, k, v, out, lse, causal, scale, documents, window)
        for group in (None,) if small else sorted({0, case.kv_heads - 1}):
            part = partial(_of_group, case=case, group=group)
            exact = [part(x).to(reference) for x in (grad, q, k, v)]
            seen = documents if small or documents is None else Visible.documents(lengths_of(case))
            where = what if small else f"{what} of {case.queries} tokens"
            own = [part(x) for x in (out, lse)]
            right = TILED_KERNELS.attend(*exact[1:], causal, scale, seen, window)
            yield from _off(("output", "log-sum-exp"), own, right, bound, where)
            wanted = TILED_KERNELS.attend_backward(*exact, *(x.to(reference) for x in own), causal, scale, seen, window)
            names = [f"gradient of {name}" for name in ("queries", "keys", "values")]
            yield from _off(names, [part(x) for x in gradients], wanted, bound, where)


def _off(
    names: Sequence[str], ours: Sequence[Tensor], theirs: Sequence[Tensor], bound: float, where: str
) -> Iterator[str]:
    for name, found, right in zip(names, ours, theirs, strict=True):
        yield from row_faults(f"{name} with {where}", found, right, bound)


def _of_group(x: Tensor, case: AttentionCase, group: int | None) -> Tensor:
    """The last row's heads that belong to a head of keys, of x [batch, tokens, heads, ...]; all of it where that is None."""
    if group is None:
        return x
    share = x.shape[2] // case.kv_heads
    return x[-1:, :, group * share : (group + 1) * share]


def _calls(case: AttentionCase) -> Iterator[tuple[str, bool, Visible | None, int | None, int]]:
    """Kinds of calls in a run: name, causal, documents, window, number of queries."""
    yield "causal rows", True, None, None, case.queries
    documents = Visible.documents(case.batch * lengths_of(case)) if case.documents else None
    if documents is not None:
        yield "documents", True, documents, None, case.queries
    for window in case.windows:
        yield f"a window of {window}", True, documents, window, case.queries
    if case.rectangles:
        yield "rectangles", False, None, None, -(-case.queries // 2)


def _inputs(case: AttentionCase, queries: int) -> list[Tensor]:
    """Seeded grad, q, k and v."""
    generator = torch.Generator(case.device).manual_seed(0)
    sizes = [
        (queries, case.heads, case.value_width),
        (queries, case.heads, case.width),
        (case.queries, case.kv_heads, case.width),
        (case.queries, case.kv_heads, case.value_width),
    ]
    return [torch.randn(case.batch, *size, generator=generator, dtype=case.dtype, device=case.device) for size in sizes]


KIND = TimedKind(
    work="attention",
    name="attention",
    option="attention_backend",
    file="attention.json",
    backends=BACKENDS,
    case_of=case_of,
    small=_small,
    faults=_faults,
    timed=timed,
    refuses=lambda model: (
        "a formula computes the scores that model.attention_softcap caps" if model.attention_softcap else None
    ),
)
