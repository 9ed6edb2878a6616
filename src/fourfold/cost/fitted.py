"""The fitted constants: of devices, links and stacks, one file, each entry with what it was fitted on and on how many rows."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

from fourfold.cost.kernels import Kernels
from fourfold.cost.links import Links
from fourfold.cost.stack import Stack

ABOUT = ("rows", "memory_rows", "fitted_on", "source")
"""Keys of an entry that are no constants."""


@dataclass(frozen=True)
class Fitted:
    """`devices`, `stacks`: constants by name, `default` for those that are not there; `links`: of collectives on any link."""

    devices: Mapping[str, Mapping[str, Any]]
    stacks: Mapping[str, Mapping[str, Any]]
    links: Mapping[str, Any]

    def stack(self, name: str) -> Stack:
        """The stack of that name; of a framework that is listed, another year's; else the default."""
        return Stack(**{**_constants(self.entry(name)), "name": name})

    def entry(self, name: str) -> dict[str, Any]:
        """A stack's constants. What its own entry leaves out is its framework's, then that of what its name begins with, word by
        word, then the default's. A year that is not listed has the framework's constants and what else the nearest year has."""
        nearest = self._nearest(name) if name not in self.stacks else ""
        *kin, framework = kin_of(name)
        layers = ("default", *kin, nearest, framework, name)
        return {key: each for layer in layers for key, each in self.stacks.get(layer, {}).items()}

    def _nearest(self, name: str) -> str:
        framework, _, date = name.rpartition("-")
        wanted = _months(date)
        if not framework or wanted is None:
            return ""
        same = {each: _months(each.removeprefix(f"{framework}-")) for each in self.stacks}
        known = [(abs(months - wanted), -months, each) for each, months in same.items() if months is not None]
        return min(known, default=(0, 0, ""))[2]

    def kernels(self, device: str, stack: Stack) -> Kernels:
        """A device's kernels as a stack runs them."""
        constants = {**self.devices.get("default", {}), **self.devices.get(device, {})}
        known = {field.name for field in fields(Kernels)}
        kernels = Kernels(**{k: v for k, v in _constants(constants).items() if k in known})
        product_share = min(1.0, kernels.product_share * stack.product_speed)
        low_share = kernels.low_share * (kernels.fine_share if stack.fine_scales else 1.0) * stack.low_speed
        return replace(
            kernels,
            product_share=product_share,
            attention_share=min(1.0, kernels.attention_share * stack.attention_speed),
            attention_backward_share=min(1.0, kernels.attention_backward_share * stack.attention_speed),
            low_share=min(1.0 / product_share, low_share),
            low_bytes=kernels.low_bytes * stack.conversions,
            fused=stack.fused,
            expert_launches=stack.expert_launches,
            gradient_bytes=stack.gradient_bytes,
            merged_passes=stack.merged_passes,
            fused_attention=stack.fused_attention,
            attention_recomputed=stack.attention_recomputed,
            attention_dropout=stack.attention_dropout,
            wide_scores=stack.wide_scores,
        )

    @cached_property
    def link_constants(self) -> Links:
        known = {field.name for field in fields(Links)}
        return Links(**{key: value for key, value in self.links.items() if key in known})

    @property
    def link_share(self) -> float:
        return float(self.links.get("share", 0.8))


def framework_of(stack: str) -> str:
    """A stack's name without its year."""
    framework, _, date = stack.rpartition("-")
    return framework if framework and _months(date) is not None else stack


def kin_of(stack: str) -> list[str]:
    """What a stack's framework begins with, word by word: what it is a fork of; the framework itself last."""
    words = framework_of(stack).split("-")
    return ["-".join(words[:number]) for number in range(1, len(words) + 1)]


def _months(date: str) -> int | None:
    """Since the year 0, of a year (`2026`) or of a release's month within one (`2026.06`); None for anything else."""
    year, _, month = date.partition(".")
    digits = f"{year}{month}"
    if len(year) != 4 or not (digits.isascii() and digits.isdigit()) or date.endswith(".") or int(month or 0) > 12:
        return None
    return 12 * int(year) + int(month or 0)


def _constants(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ABOUT}


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """The constants that ship with the project."""
    text = (resources.files("fourfold.cost") / "fitted.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return Fitted(table["device"], table["stack"], table["link"])
