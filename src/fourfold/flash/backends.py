"""The back ends of attention, and the cases that each takes.

Torch's flash kernels are one pair of operators, behind which torch's registry can put FlashAttention 3 or 4 where their packages
are installed. FlexAttention is none of them: it has no backward that takes a log-sum-exp over keys of other calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.attention
from torch import Tensor

from fourfold.flash import library, own_backends, package


@dataclass(frozen=True)
class AttentionCase:
    """A run's attention in one call: `batch` rows of `queries` tokens and as many keys, causal. `width`: of a head's
    queries and keys; `value_width`: of its values. `documents`: rows hold several of them; `rectangles`: there are also calls in
    which every query sees every key, as under context parallelism."""

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


@dataclass(frozen=True)
class AttentionBackend:
    """`attend` and `attend_backward`: as `Operations` has them. `refuses`: why it does not take a case; None: it may. `activate`:
    called before its first use."""

    name: str
    attend: Callable[..., tuple[Tensor, Tensor]]
    attend_backward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    refuses: Callable[[AttentionCase], str | None]
    activate: Callable[[], None] = lambda: None


def _is_half(case: AttentionCase) -> bool:
    return case.dtype in (torch.bfloat16, torch.float16)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def triton_refuses(device: torch.device) -> str | None:
    """Why Triton's kernels do not run on a device; None: they do."""
    if device.type != "cuda":
        return "it runs on CUDA"
    return None if _is_installed("triton") else "triton is not installed"


def _refused(
    case: AttentionCase, *, half: bool = False, documents: bool = True, width: int = 1, widest: int = 256
) -> str | None:
    """Why a kernel on CUDA of these limits does not take the case. `width`: what head sizes are multiples of."""
    if case.device.type != "cuda":
        return "it runs on CUDA"
    if half and not _is_half(case):
        return "it takes bf16 and fp16"
    if case.documents and not documents:
        return "it takes no documents"
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


FLASH = AttentionBackend("flash", library.flash, library.flash_backward, _flash_refuses, _restore_flash)
TILED = AttentionBackend("tiled", own_backends.plain, own_backends.plain_backward, lambda case: None)


def _registered(name: str, implementation: str, module: str) -> AttentionBackend:
    """An implementation in torch's registry of flash attention."""

    def refuses(case: AttentionCase) -> str | None:
        if implementation not in getattr(torch.nn.attention, "list_flash_attention_impls", list)():
            return f"this torch has no {implementation} in its registry"
        return _refused(case, half=True) or (None if _is_installed(module) else f"{module} is not installed")

    def activate() -> None:
        torch.nn.attention.activate_flash_attention_impl(implementation)

    return AttentionBackend(name, library.flash, library.flash_backward, refuses, activate)


def _package_refuses(case: AttentionCase) -> str | None:
    return _refused(case, half=True) or (None if _is_installed(package.NAME) else f"{package.NAME} is not installed")


def _triton_refuses(case: AttentionCase) -> str | None:
    return _refused(case) or triton_refuses(case.device)


BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend
    for backend in (
        FLASH,
        _registered("flash-3", "FA3", "flash_attn_interface"),
        _registered("flash-4", "FA4", "flash_attn.cute"),
        AttentionBackend(
            "cudnn",
            library.cudnn,
            library.cudnn_backward,
            lambda case: _refused(case, half=True, documents=False, width=8),
        ),
        AttentionBackend(
            "efficient",
            library.efficient,
            library.efficient_backward,
            lambda case: _refused(case, documents=False, width=8),
        ),
        AttentionBackend("flash-attn", package.flash_attn, package.flash_attn_backward, _package_refuses),
        AttentionBackend("triton", own_backends.triton, own_backends.triton_backward, _triton_refuses),
        TILED,
    )
}
"""By name, in the order that decides between equals: libraries first."""
