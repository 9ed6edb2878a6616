"""The constants that are fitted, as a tree: a device's is its prior x its family's departure x its own; a row's software has its
profile's prior x the profile's departure x its trainer's, of which the first two are written. A leaf of which nothing is known has
its branch's, a leaf with few rows stays near it."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from case import PublishedCase
from fourfold.cost.fitted import Fitted, framework_of

Numbers = NDArray[np.float64]
Table = dict[str, dict]

FAMILIES = {
    "volta": ("v100-sxm-16", "v100-sxm-32"),
    "ampere": (
        "a100-custom-64",
        "a100-pcie-40",
        "a100-pcie-80",
        "a100-sxm-40",
        "a100-sxm-80",
        "a800-sxm-80",
    ),
    "ampere workstation": ("a10g", "a40", "rtx-3090", "rtx-a5000", "rtx-a6000"),
    "ada": ("l4", "l40", "l40s", "rtx-4090", "rtx-6000-ada"),
    "hopper": (
        "gh200-96",
        "gh200-144",
        "h100-custom-96",
        "h100-nvl",
        "h100-pcie",
        "h100-sxm",
        "h20",
        "h200-sxm",
        "h800-sxm",
    ),
    "gaudi": ("gaudi-2", "gaudi-3"),
    "xe": ("max-1550",),
    "blackwell": ("b200", "gb200"),
    "blackwell ultra": ("b300", "gb300"),
    "blackwell workstation": ("rtx-5090", "rtx-pro-6000"),
    "cdna": ("mi100", "mi250x-gcd", "mi325x", "mi350x", "mi355x", "mi300x"),
    "ascend": ("ascend-910c", "ascend-910c-die", "ascend-910b"),
    "neuron": ("trainium2", "trainium-core"),
    "tpu of 128 x 128": ("tpu-v4", "tpu-v5p"),
    "tpu": ("tpu-v7x", "tpu-v5e", "tpu-v6e"),
}
UNKNOWN = "unknown"
LINK = {"share": 0.02, "network_share": 0.03, "node_hop_seconds": 0.3, "network_hop_seconds": 0.5}
DEVICE = {
    "gemm_share": 0.12,
    "attention_share": 0.15,
    "low_share": 0.1,
    "fine_share": 0.06,
    "grouped_share": 0.15,
    "memory_share": 0.1,
}
SOFTWARE = {
    "gemm_speed": 0.028,
    "attention_speed": 0.08,
    "link_speed": 0.056,
    "fused": 0.084,
    "host_launch_seconds": 0.12,
    "host_route_seconds": 0.25,
    "host_crowded_seconds": 0.15,
    "host_gather_seconds": 0.3,
    "network_hops": 0.15,
    "conversions": 0.3,
    "low_speed": 0.05,
    "gradient_bytes": 0.15,
    "expert_speed": 0.2,
}
"""Names of constants that are fitted to step times, and how far, in logarithm, one is likely to be from where it stands."""
MEASURED, KNOWN = ("ampere", "hopper", "blackwell", "blackwell ultra"), 0.4
"""Families whose priors are measurements of single operators, and how much nearer to them they and their devices stay."""
SPREAD = {"link": 1.0, "family": 1.5, "device": 0.54, "framework": 1.0, "software": 2.0, "trainer": 0.5}
"""How far one of that level is likely to be, beside those. A trainer's own departure (Megatron of 2024, a fork) keeps its family
from following one of its members too far, and is not written. It is narrow: where it was as wide as a profile's, it took what a
family's own rows said of the family, and sources that were left out were predicted worse (mean 17.7 %, with this one 17.3 %; at
1.0 17.5 %, at 0.1 17.3 %; rows weighing as in the fit to all). The others and the spreads of software profiles were chosen on the
linearised model: of those that predict a file best that was left out, which hardly tells them apart, the widest."""
LIMITS = {
    "gradient_bytes": (0.0, 30.0),
    "fused": (0.05, 1.0),
    "share": (0.5, 0.9),
    "network_share": (0.7, 1.15),
    "gemm_share": (0.3, 0.97),
    "attention_share": (0.15, 0.9),
    "attention_speed": (0.3, 2.2),
    "link_speed": (0.1, 2.0),
    "network_hops": (0.3, 12.0),
    "memory_share": (0.4, 0.97),
    "grouped_share": (0.4, 1.0),
    "low_share": (0.5, 1.0),
    "fine_share": (0.7, 1.0),
    "conversions": (0.3, 8.0),
    "low_speed": (0.6, 1.3),
    "expert_speed": (0.3, 1.5),
}
NAMES = (
    [("link", name) for name in LINK]
    + [("device", name) for name in DEVICE]
    + [("software", name) for name in SOFTWARE]
)


def weights_of(cases: Iterable[PublishedCase]) -> Numbers:
    """The weight of each row's residual: every file weighs by the square root of its rows."""
    cases = list(cases)
    count: dict[str, int] = {}
    for case in cases:
        count[case.file] = count.get(case.file, 0) + 1
    return np.array([count[case.file] ** -0.25 for case in cases])


def family_of(device: str) -> str:
    return next((family for family, members in FAMILIES.items() if device in members), device)


def constants_of(table: Table) -> Fitted:
    return Fitted(table["device"], table["software"], table["link"])


def copied(table: Table) -> Table:
    return copy.deepcopy(table)


@dataclass(frozen=True)
class Node:
    """One departure: of a link, a family, a device, a framework, its year or a trainer."""

    level: str
    owner: str
    name: str

    @property
    def spread(self) -> float:
        known = KNOWN if self.level in ("family", "device") and family_of(self.owner) in MEASURED else 1.0
        return {**LINK, **DEVICE, **SOFTWARE}[self.name] * SPREAD[self.level] * known


def nodes_of(part: str, case: PublishedCase, name: str) -> tuple[Node, ...]:
    """The departures that a case's constant is made of: software that nobody knows has none. A trainer that gives its family the
    name (torchtitan of 2025) is the family, and has none beside it."""
    if part == "link":
        return (Node("link", "", name),)
    if part == "device":
        return Node("family", family_of(case.device), name), Node("device", case.device, name)
    if framework_of(case.software) == UNKNOWN:
        return ()
    framework = framework_of(case.software)
    trainer = () if framework_of(case.trainer) == framework else (Node("trainer", case.trainer, name),)
    year = () if case.software == framework else (Node("software", case.software, name),)
    return Node("framework", framework, name), *year, *trainer


@dataclass(frozen=True)
class Constants:
    """A table as the cases read it: every owner's value of a name, whether or not it has an entry."""

    table: Table

    @cached_property
    def fitted(self) -> Fitted:
        return constants_of(self.table)

    def value(self, part: str, owner: str, name: str) -> float:
        if part == "link":
            return self.fitted.link_share if name == "share" else float(getattr(self.fitted.link_constants, name))
        return float(getattr(self.fitted.device(owner) if part == "device" else self.fitted.software(owner), name))

    def of(self, part: str, case: PublishedCase, name: str) -> float:
        return self.value(part, {"link": "", "device": case.device, "software": case.software}[part], name)


def scaled(table: Table, cases: Iterable[PublishedCase], part: str, name: str, factor: float) -> Table:
    """The table with that constant of every owner that the cases have times `factor`."""
    new, now, cases = copied(table), Constants(table), list(cases)
    owners = {"link": {""}, "device": {c.device for c in cases}, "software": {c.software for c in cases}}[part]
    for owner in sorted(owners):
        put(new, part, owner, name, now.value(part, owner, name) * factor)
    return new


def put(table: Table, part: str, owner: str, name: str, value: float) -> None:
    """Sets a constant; a software profile that had no entry gets one of what it had been taken for."""
    low, high = LIMITS.get(name, (0.0, 1e9))
    value = min(high, max(low, value))
    if part == "link":
        table["link"][name] = value
        return
    if part == "software" and owner not in table["software"]:
        table["software"][owner] = constants_of(table).entry(owner)
    entry = table[part].setdefault(owner, {})
    if name == "attention_share":
        before = constants_of(table).device(owner)
        entry["attention_backward_share"] = value * before.attention_backward_share / before.attention_share
    entry[name] = value


def moved_by(prior: Table, departures: Mapping[Node, float], profiles: Iterable[str]) -> Table:
    """The prior moved by the departures: links, all devices of known families, the frameworks of the software profiles, the
    software profiles."""
    table, before = copied(prior), Constants(prior)
    for name in LINK:
        put(table, "link", "", name, before.value("link", "", name) * _factor(departures, Node("link", "", name)))
    known = {node.owner for node in departures if node.level == "device"}
    for device in sorted(known | {member for members in FAMILIES.values() for member in members}):
        for name in DEVICE:
            moved = _factor(departures, Node("family", family_of(device), name), Node("device", device, name))
            if moved != 1.0 or device in table["device"]:
                put(table, "device", device, name, before.value("device", device, name) * moved)
    profiles = {software for software in profiles if framework_of(software) != UNKNOWN}
    for owner in sorted({framework_of(software) for software in profiles}) + sorted(profiles):
        for name in SOFTWARE:
            moved = _factor(departures, Node("framework", framework_of(owner), name), Node("software", owner, name))
            put(table, "software", owner, name, before.value("software", owner, name) * moved)
    return table


def _factor(departures: Mapping[Node, float], *nodes: Node) -> float:
    return float(np.exp(sum(departures.get(node, 0.0) for node in nodes)))
