"""The constants that are fitted, as a tree: a device's is its prior x its family's departure x its own; a software profile's its
prior x its family's departure x its framework's x its own. A leaf of which nothing is known has its branch's, a leaf with few
rows stays near it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from case import PublishedCase
from fourfold.cost.fitted import INHERITS, Fitted, framework_of

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
UNKNOWN, OWN = "unknown", "fourfold"
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
    "network_hops": 0.15,
    "conversions": 0.3,
    "low_speed": 0.05,
    "gradient_bytes": 0.15,
}
"""Names of constants that are fitted to step times, and how far, in logarithm, one is likely to be from where it stands."""
MEASURED, KNOWN = ("ampere", "hopper", "blackwell", "blackwell ultra"), 0.4
"""Families whose priors are measurements of single operators, and how much nearer to them they and their devices stay."""
SPREAD = {"link": 1.0, "family": 1.5, "device": 0.54, "software": 1.0}
"""How far one of that level is likely to be, beside those: chosen on the linearised model, of those that predict a source best that
was left out, which hardly tells them apart."""
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
    return json.loads(json.dumps(table))


@dataclass(frozen=True)
class Node:
    """One departure: of a link, a family of devices, a device, or a software profile, be it a family, a framework or a year."""

    level: str
    owner: str
    name: str

    @property
    def spread(self) -> float:
        known = KNOWN if self.level in ("family", "device") and family_of(self.owner) in MEASURED else 1.0
        return {**LINK, **DEVICE, **SOFTWARE}[self.name] * SPREAD[self.level] * known


def lineage(software: str, known: Fitted) -> list[str]:
    """The profiles whose departures a software profile's constants are made of, oldest first, itself last. Its framework is one
    of them, whether or not it has an entry; of software that nobody knows there is none."""
    framework = framework_of(software)
    if framework == UNKNOWN:
        return []
    above = [each for each in (*known.ancestry(framework), framework) if each != "default"]
    return above if software == framework else [*above, software]


def nodes_of(part: str, case: PublishedCase, name: str, known: Fitted) -> tuple[Node, ...]:
    """The departures that a case's constant is made of. `known`: who inherits from whom."""
    if part == "link":
        return (Node("link", "", name),)
    if part == "device":
        return Node("family", family_of(case.device), name), Node("device", case.device, name)
    return tuple(Node("software", owner, name) for owner in lineage(case.software, known))


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
    if part == "software" and set(table["software"].get(owner, ())) <= {INHERITS}:
        table["software"][owner] = {**table["software"].get(owner, {}), **constants_of(table).entry(owner)}
    entry = table[part].setdefault(owner, {})
    if name == "attention_share":
        before = constants_of(table).device(owner)
        entry["attention_backward_share"] = value * before.attention_backward_share / before.attention_share
    entry[name] = value


def moved_by(prior: Table, departures: Mapping[Node, float], profiles: Iterable[str]) -> Table:
    """The prior moved by the departures: links, all devices of known families, the software profiles and their ancestors."""
    table, before = copied(prior), Constants(prior)
    for name in LINK:
        put(table, "link", "", name, before.value("link", "", name) * _factor(departures, Node("link", "", name)))
    known = {node.owner for node in departures if node.level == "device"}
    for device in sorted(known | {member for members in FAMILIES.values() for member in members}):
        for name in DEVICE:
            moved = _factor(departures, Node("family", family_of(device), name), Node("device", device, name))
            if moved != 1.0 or device in table["device"]:
                put(table, "device", device, name, before.value("device", device, name) * moved)
    known = constants_of(prior)
    lineages = {software: lineage(software, known) for software in profiles}
    for owner in dict.fromkeys(owner for owners in sorted(lineages.values()) for owner in owners):
        above = lineage(owner, known)
        for name in SOFTWARE:
            moved = _factor(departures, *(Node("software", each, name) for each in above))
            put(table, "software", owner, name, before.value("software", owner, name) * moved)
    return table


def halfway(start: Table, found: Table) -> Table:
    """Constants of step times between two tables, each the geometric mean of both; all others as `start` has them. A device of one
    table alone is as that has it."""
    one, other, table = Constants(start), Constants(found), copied(start)
    parts = {"link": LINK, "device": DEVICE, "software": SOFTWARE}
    for part, names in parts.items():
        for owner in [""] if part == "link" else _from_the_oldest(part, found):
            if owner == OWN or owner == "default":
                continue
            for name in names:
                first, second = one.value(part, owner, name), other.value(part, owner, name)
                lacking = part == "device" and owner not in start["device"]
                put(table, part, owner, name, second if lacking or not first else float(np.sqrt(first * second)))
    return table


NEAR = 0.02


def without_small_departures(table: Table) -> Table:
    """A copy in which a software profile whose constant is within `NEAR` of what it inherits has that."""
    found = copied(table)
    for owner in _from_the_oldest("software", table):
        above = constants_of(found).inherited(owner)
        found["software"][owner] = {
            key: each
            for key, each in found["software"][owner].items()
            if key == INHERITS or not _is_near(each, above[key])
        }
    return found


def _is_near(value: object, inherited: object) -> bool:
    numbers = isinstance(value, float) and isinstance(inherited, float) and inherited > 0
    return abs(value / inherited - 1) < NEAR if numbers else value == inherited  # type: ignore[operator]


def _from_the_oldest(part: str, table: Table) -> list[str]:
    known = constants_of(table)
    return sorted(table[part], key=lambda owner: (len(known.ancestry(owner)) if part == "software" else 0, owner))


def _factor(departures: Mapping[Node, float], *nodes: Node) -> float:
    return float(np.exp(sum(departures.get(node, 0.0) for node in nodes)))
