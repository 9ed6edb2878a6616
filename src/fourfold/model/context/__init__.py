"""Causal attention over a sequence that is split across ranks. Pieces and costs need no torch; the attention itself does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fourfold.model.context.attention import context_attention

__all__ = ["context_attention"]


def __getattr__(name: str) -> Any:
    if name == "context_attention":  # imported when asked for: a planner reads `cost` without torch
        from fourfold.model.context.attention import context_attention

        return context_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
