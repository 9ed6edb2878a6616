"""Models and runs of the literature that come with fourfold, by name."""

import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any

from fourfold.config.errors import UserError, did_you_mean
from fourfold.config.model_section import RopeScaling, YarnScaling

RUN_PRESET = "preset:"
"""The prefix of a run's name that is one of `run_preset_names` instead of a file."""


def preset_names() -> list[str]:
    """Names that `model.preset` takes."""
    return names_in("fourfold.config", "presets")


def run_preset_names() -> list[str]:
    """Runs of the literature, to be named as `preset:NAME` wherever a run file is."""
    return names_in("fourfold.config", "runs")


def model_preset(name: str) -> dict[str, Any]:
    """The dimensions of a preset, by the names of `ModelConfig`. Raises `UserError` for an unknown name."""
    if name not in preset_names():
        hint = did_you_mean(name, preset_names())
        raise UserError(f"model.preset = {name!r} is unknown; {hint}allowed: {', '.join(preset_names())}")
    values = tomllib.loads(text_in("fourfold.config", "presets", name))
    for key, kind in (("rope_scaling", RopeScaling), ("yarn_scaling", YarnScaling)):
        if key in values:
            values[key] = kind(**values[key])
    return values


def run_preset_text(name: str) -> str:
    """The run file `preset:NAME`. Raises `UserError` for an unknown name, with the nearest."""
    allowed = run_preset_names()
    stem = name.removeprefix(RUN_PRESET)
    if stem not in allowed:
        hint = did_you_mean(stem, allowed, RUN_PRESET.__add__)
        raise UserError(f"{name}: no such run; {hint}allowed: {', '.join(RUN_PRESET + a for a in allowed)}")
    return text_in("fourfold.config", "runs", stem)


def names_in(package: str, folder: str) -> list[str]:
    """The TOML files that ship in a package's folder, without their ends."""
    return list(_names_in(package, folder))


@lru_cache(maxsize=16)
def _names_in(package: str, folder: str) -> tuple[str, ...]:
    files = (resources.files(package) / folder).iterdir()
    return tuple(sorted(p.name.removesuffix(".toml") for p in files if p.name.endswith(".toml")))


@lru_cache(maxsize=64)
def text_in(package: str, folder: str, name: str) -> str:
    """One of `names_in`."""
    return (resources.files(package) / folder / f"{name}.toml").read_text(encoding="utf-8")
