"""Models and runs of the literature that come with fourfold, by name."""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any

from fourfold.config.errors import UserError, did_you_mean
from fourfold.config.model_section import ModelSection

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""An account and a repository."""
RUN_PRESET = "preset:"
"""The prefix of a run's name that is one of `run_preset_names` instead of a file."""


def preset_names() -> list[str]:
    """Names that `model.preset` takes."""
    return names_in("fourfold.config", "presets")


def run_preset_names() -> list[str]:
    """Runs of the literature, to be named as `preset:NAME` wherever a run file is."""
    return names_in("fourfold.config", "runs")


def preset_of_hub(name: str) -> str | None:
    """The preset that has a model's name of the Hugging Face hub; None for what is no such name. Raises `UserError` where there is
    none: nothing is read from the hub."""
    if not _HUB_NAME.fullmatch(name):
        return None
    known = {_letters(each): each for each in preset_names()}
    if (preset := known.get(_letters(name.partition("/")[2]))) is not None:
        return preset
    raise UserError(
        f"{name}: no such folder, and no preset has this name of the Hugging Face hub, from which nothing is read; what works: "
        "download its config.json into a folder (model.hf, or --model FOLDER), or the preset llama3-8b"
    )


def _letters(name: str) -> str:
    """A model's name without marks, maker and revision: Meta-Llama-3-8B and llama3-8b have the same."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"-v0\.\d$|^meta-", "", name.lower()))


def model_preset(name: str) -> dict[str, Any]:
    """The dimensions of a preset, by the names of `ModelConfig`. Raises `UserError` for an unknown name."""
    name = preset_of_hub(name) or name
    if name not in preset_names():
        hint = did_you_mean(name, preset_names())
        raise UserError(f"model.preset = {name!r} is unknown; {hint}allowed: {', '.join(preset_names())}")
    section = ModelSection.model_validate(tomllib.loads(text_in("fourfold.config", "presets", name)))
    return {key: getattr(section, key) for key in section.model_fields_set}


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
