"""Other people's models: their configs read and written, their families, and a run's model resolved with them."""

from fourfold.huggingface.config_json import parse_config, read_config, to_config
from fourfold.huggingface.families import FAMILIES, family_of
from fourfold.huggingface.nearest import Nearest, gated_width, nearest_model
from fourfold.huggingface.resolve import resolve_model, resolve_nearest

__all__ = [
    "FAMILIES",
    "Nearest",
    "family_of",
    "gated_width",
    "nearest_model",
    "parse_config",
    "read_config",
    "resolve_model",
    "resolve_nearest",
    "to_config",
]
