"""Fitted constants of devices, links and software profiles: one file, whose entries state only what they do not inherit.

Software profiles of one's own are TOML files that name a shipped profile and state the constants that depart from it.
"""

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from fourfold.config import UserError, did_you_mean
from fourfold.config.small_toml import SmallToml
from fourfold.config.whole_file import write_whole
from fourfold.cost.collectives import Links
from fourfold.cost.kernels import Kernels
from fourfold.cost.software import SoftwareProfile

NONE: Mapping[str, float] = MappingProxyType({})
LINK_SHARE = 0.8
"""Share of a level's bandwidth that collectives reach where nothing was fitted."""
_EXAMPLE = 'base = "megatron-2025" and, under [constants], gemm_speed = 0.95'
_FILES = SmallToml(
    "a software profile", "mine.toml", "what works: a file that fourfold fit wrote", f"; what works: {_EXAMPLE}"
)


@dataclass(frozen=True)
class Fitted:
    """Constants by name. An entry states only what departs from what it inherits.

    `profiles`: families of trainers. One inherits from each name that its own begins with, word by word
    (`megatron-deepspeed` from `megatron`), that from `default`, and `default` from the class `SoftwareProfile`. A year
    (`torchtitan-2026`) inherits from its framework. A year that has no entry inherits its framework's numbers, but words
    and switches (`dispatcher = "hybridep"`) from the nearest year that has one. `devices`: each inherits from `default`,
    and `default` from `Kernels`. `links`: inherit from `Links` and `LINK_SHARE`."""

    devices: Mapping[str, Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Any]]
    links: Mapping[str, Any]

    def software(self, name: str) -> SoftwareProfile:
        """The software of that name, whether or not it has an entry."""
        return SoftwareProfile(**{**self.entry(name), "name": name})

    def entry(self, name: str) -> dict[str, Any]:
        """All constants of a software profile: its own over those that it inherits."""
        return {**self.inherited(name), **self.profiles.get(name, {})}

    def inherited(self, name: str) -> dict[str, Any]:
        """All constants that a software profile of that name has if its own entry states nothing."""
        nearest = "" if name in self.profiles else self._nearest(name)
        if nearest and framework_of(name) not in self.profiles:
            return self.entry(nearest)
        found = {field.name: field.default for field in fields(SoftwareProfile) if field.name not in ("name", "base")}
        for ancestor in ("default", *ancestors_of(name)):
            if ancestor != name:
                found.update(self.profiles.get(ancestor, {}))
        if nearest:
            found.update({key: each for key, each in self.entry(nearest).items() if isinstance(each, bool | str)})
        return found

    def _nearest(self, name: str) -> str:
        """The entry of the same framework whose date is nearest, the later of two; an empty name where there is none."""
        framework, _, date = name.rpartition("-")
        wanted = _months(date)
        if not framework or wanted is None:
            return ""
        same = {each: _months(each.removeprefix(f"{framework}-")) for each in self.profiles}
        known = [(abs(months - wanted), -months, each) for each, months in same.items() if months is not None]
        return min(known, default=(0, 0, ""))[2]

    def device(self, name: str, measured: Mapping[str, float] = NONE) -> Kernels:
        """A device's kernels, whether or not it has an entry. `measured`: constants of its own file, in place of fitted ones."""
        return Kernels(**{**self.devices.get("default", {}), **self.devices.get(name, {}), **measured})

    def kernels(self, device: str, software: SoftwareProfile, measured: Mapping[str, float] = NONE) -> Kernels:
        """A device's kernels as a software profile runs them. `measured`: as for `device`."""
        kernels = self.device(device, measured)
        gemm_share = min(1.0, kernels.gemm_share * software.gemm_speed)
        low_share = kernels.low_share * (kernels.fine_share if software.fine_scales else 1.0) * software.low_speed
        return replace(
            kernels,
            gemm_share=gemm_share,
            attention_share=min(1.0, kernels.attention_share * software.attention_speed),
            attention_backward_share=min(1.0, kernels.attention_backward_share * software.attention_speed),
            low_share=min(1.0 / gemm_share, low_share),
            low_bytes=kernels.low_bytes * software.conversions,
            fused=software.fused,
            fused_parts=software.fused_parts,
            expert_launches=software.expert_launches,
            expert_speed=software.expert_speed,
            gradient_bytes=software.gradient_bytes,
            merged_passes=software.merged_passes,
            fused_attention=software.fused_attention,
            attention_recomputed=software.attention_recomputed,
            attention_dropout=software.attention_dropout,
            fp32_scores=software.fp32_scores,
            written_passes=software.written_passes,
        )

    @cached_property
    def link_constants(self) -> Links:
        return Links(**{key: value for key, value in self.links.items() if key != "share"})

    @property
    def link_share(self) -> float:
        return float(self.links.get("share", LINK_SHARE))


def framework_of(software: str) -> str:
    """A software profile's name without its year."""
    framework, _, date = software.rpartition("-")
    return framework if framework and _months(date) is not None else software


def year_of(software: str) -> int | None:
    """The year of a dated profile's name."""
    date = software.rpartition("-")[2]
    return None if _months(date) is None else int(date.partition(".")[0])


def ancestors_of(software: str) -> list[str]:
    """Ancestor names, shortest first: what a software profile's framework begins with, word by word; the framework itself last."""
    words = framework_of(software).split("-")
    return ["-".join(words[:number]) for number in range(1, len(words) + 1)]


def _months(date: str) -> int | None:
    """Since the year 0, of a year (`2026`) or of a release's month within one (`2026.06`); None for anything else."""
    year, _, month = date.partition(".")
    digits = f"{year}{month}"
    if len(year) != 4 or not (digits.isascii() and digits.isdigit()) or date.endswith(".") or int(month or 0) > 12:
        return None
    return 12 * int(year) + int(month or 0)


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """The constants that ship with the project."""
    text = (resources.files("fourfold.cost") / "fitted.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return Fitted(table["device"], table["software"], table["link"])


def is_software_file(name: str) -> bool:
    """Whether `--software` names a file, not a shipped profile."""
    return name.endswith(".toml")


def read_software(path: Path) -> SoftwareProfile:
    """The profile of a file. Its name is the file's stem. Raises `UserError`."""
    table = _FILES.table(_FILES.read(path), str(path))
    base, constants = table.get("base"), table.get("constants", {})
    known = sorted(fitted().profiles)
    if not isinstance(base, str) or framework_of(base) not in map(framework_of, known):
        hint = did_you_mean(str(base), known, repr)
        raise UserError(f"{path}: base = {base!r}: no such software; {hint}what works: {_EXAMPLE}")
    if not isinstance(constants, dict):
        raise UserError(f"{path}: constants = {constants!r}; what works: {_EXAMPLE}")
    numbers = {field.name: field.default for field in fields(SoftwareProfile) if _is_number(field.default)}
    for key, value in constants.items():
        if key not in numbers:
            hint = did_you_mean(key, numbers, repr)
            raise UserError(f"{path}: constants.{key}: no such constant; {hint}what works: {_EXAMPLE}")
        if not _is_number(value) or not math.isfinite(value) or not -1 < value < 1e12:
            raise UserError(
                f"{path}: constants.{key} = {value!r}; allowed: a number; a value that works: {numbers[key]}"
            )
    return SoftwareProfile(**{**fitted().entry(base), **constants, "name": path.stem, "base": base})


def write_software(path: Path, base: str, constants: Mapping[str, float], about: str) -> None:
    """Writes a new file that `read_software` reads. Raises `UserError` where there is one, `OSError` where the
    disk refuses."""
    table: dict[str, Any] = {"base": base, "constants": dict(constants)}
    lines = "".join(f"# {line}\n" for line in about.splitlines())
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; name a new file")
    write_whole(path, lines + tomli_w.dumps(table))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
