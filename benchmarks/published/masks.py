"""The part of causal attention's work that a published row's masks leave: sliding windows, documents packed together."""

import re

from defaults import ImputedDefaults
from fourfold.cost.prices import Windows, share_left
from row import StatedModel

WINDOWS: tuple[tuple[str, Windows], ...] = (
    (r"gpt-?oss", Windows(128, 1 / 2)),
    (r"gemma[-_ ]?2(?!\d*b)", Windows(4096, 1 / 2)),
    (r"gemma[-_ ]?3", Windows(1024, 5 / 6)),
)
"""Models and their sliding windows (released configurations)."""
DOCUMENT_TOKENS = 512
_DOCUMENTS = re.compile(
    r"block[- ]diagonal|(?<!no )(?<!without )document (attention )?mask|within (short |packed )*documents", re.I
)


def _windows(model: StatedModel) -> Windows | None:
    """Windows as the row states them, else as its model is known to have them."""
    usual = next((windows for name, windows in WINDOWS if re.search(name, model.name, re.I)), None)
    if model.window is None:
        return usual
    layers = usual.layers if usual else 1.0
    if model.full_layers is not None and model.num_layers:
        layers = max(0.0, 1 - model.full_layers / model.num_layers)
    return Windows(model.window, layers)


def attention_share(model: StatedModel, notes: str, sequence_length: int, imputed: ImputedDefaults) -> float:
    """1 where nothing is masked but what comes later."""
    windows, packed = _windows(model), bool(_DOCUMENTS.search(notes))
    if windows is not None and windows.tokens < sequence_length:
        imputed.approximate("sliding_window")
    if packed:
        imputed.approximate("documents")
    return share_left(sequence_length, DOCUMENT_TOKENS if packed else None, windows)
