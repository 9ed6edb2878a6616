"""The constants that are fitted to step times: names and owners, how far one may be from its prior, and where they stand in the
table of the file."""

import json
from collections import defaultdict

from fourfold.cost.fitted import Fitted
from fourfold.cost.stack import Stack
from fourfold.validate import Case

Table = dict[str, dict]

FAMILIES = {
    "volta": ("v100-sxm-16", "v100-sxm-32"),
    "ampere": (
        "a10g",
        "a40",
        "rtx-3090",
        "rtx-a5000",
        "rtx-a6000",
        "a100-pcie-40",
        "a100-pcie-80",
        "a100-sxm-40",
        "a100-sxm-80",
        "a800-sxm-80",
    ),
    "ada": ("l4", "l40", "l40s", "rtx-4090", "rtx-6000-ada"),
    "hopper": ("gh200-96", "gh200-144", "h100-nvl", "h100-pcie", "h100-sxm", "h20", "h200-sxm", "h800-sxm"),
    "blackwell": ("b200", "gb200"),
    "blackwell ultra": ("b300", "gb300"),
    "blackwell workstation": ("rtx-5090", "rtx-pro-6000"),
    "cdna": ("mi100", "mi250x-gcd", "mi325x", "mi350x", "mi355x", "mi300x"),
    "ascend": ("ascend-910c", "ascend-910b"),
    "neuron": ("trainium2", "trainium-core"),
    "tpu": ("tpu-v7x", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"),
}
LINK = {"share": 0.02, "network_share": 0.03, "node_hop_seconds": 0.3, "network_hop_seconds": 0.5}
DEVICE = {"product_share": 0.12, "attention_share": 0.15, "low_share": 0.1, "grouped_share": 0.15, "memory_share": 0.1}
STACK = {
    "product_speed": 0.1,
    "attention_speed": 0.12,
    "link_speed": 0.2,
    "fused": 0.3,
    "host_launch_seconds": 0.25,
    "host_route_seconds": 0.6,
    "host_crowded_seconds": 0.3,
    "network_hops": 0.5,
}
"""Names of constants that are fitted to step times, and how far, in logarithm, one is likely to be from its prior."""
ALWAYS = ("product_speed", "attention_speed", "link_speed", "fused", "host_launch_seconds")
SEEN = {"nanotron": ("host_crowded_seconds", "network_hops")}
"""What shows only in layouts that are bad enough: by framework."""
LEAST_ROWS = 6
LIMITS = {
    "fused": (0.05, 1.0),
    "share": (0.5, 0.9),
    "network_share": (0.7, 1.15),
    "product_share": (0.3, 0.9),
    "memory_share": (0.4, 0.95),
    "grouped_share": (0.4, 1.0),
    "low_share": (0.5, 1.0),
}


def constants_of(table: Table) -> Fitted:
    return Fitted(table["device"], table["stack"], table["link"])


# Parameters: (part, owner, name); the owner of a device's constant is its family.


def family_of(device: str) -> str | None:
    return next((family for family, members in FAMILIES.items() if device in members), None)


def parameters(cases: list[Case], left_out: set[str]) -> list[tuple[str, str, str]]:
    devices, stacks, low, routed = (defaultdict(int) for _ in range(4))
    for case in cases:
        routed[case.stack] += case.model.num_experts > 0
        devices[family_of(case.device) or ""] += 1
        stacks[case.stack] += 1
        low[family_of(case.device) or ""] += case.precision.low is not None
    found = [("link", "", name) for name in LINK]
    for family in sorted(f for f, n in devices.items() if f and n >= LEAST_ROWS):
        found += [("device", family, name) for name in DEVICE if name != "low_share" or low[family] >= LEAST_ROWS]
    for stack in sorted(s for s, n in stacks.items() if n >= LEAST_ROWS and s not in left_out):
        seen = SEEN.get(stack.partition("-")[0], ())
        found += [("stack", stack, n) for n in STACK if n in ALWAYS or n in seen]
        found += [("stack", stack, "host_route_seconds")] * (routed[stack] >= LEAST_ROWS)
    return found


def get(table: Table, part: str, owner: str, name: str) -> float:
    if part == "link":
        return float(table["link"][name])
    owner = FAMILIES[owner][-1] if part == "device" else owner
    for each in (owner, owner.partition("-")[0], "default"):
        if name in table[part].get(each, {}):
            return float(table[part][each][name])
    return float(getattr(Stack, name)) if part == "stack" else 1.0


def put(table: Table, part: str, owner: str, name: str, value: float) -> None:
    low, high = LIMITS.get(name, (0.0, 1e9))
    value = min(high, max(low, value))
    if part == "link":
        table["link"][name] = value
        return
    for each in FAMILIES[owner] if part == "device" else (owner,):
        entry = table[part].setdefault(each, {})
        if name == "attention_share":
            default = table[part]["default"]
            ratio = default["attention_backward_share"] / default["attention_share"]
            entry["attention_backward_share"] = value * ratio
        entry[name] = value


def copied(table: Table) -> Table:
    return json.loads(json.dumps(table))
