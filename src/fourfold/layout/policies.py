"""Each segment's activations between forward and backward: they stay, are computed again, or wait in the host's memory."""

import re

from fourfold.config import ModelConfig, UserError, did_you_mean
from fourfold.layout.mesh import Recompute

OFFLOAD = ("none", "activations")


def recompute_policies(stated: str | list[str], model: ModelConfig) -> tuple[Recompute, ...]:
    """`"none"`, `"selective"`, `"full"`; `"full:4"` (the first 4 blocks, the others none); or a list, one a block. MTP
    modules go as the last block does. Raises `UserError`."""
    allowed = ("none", "selective", "full")
    num_layers = model.num_layers
    policies: list[str]
    if isinstance(stated, list):
        policies = stated
        if len(policies) != num_layers:
            raise UserError(
                f"layout.recompute lists {len(policies)} policies for {num_layers} blocks; allowed: one a block, or one word, "
                f"{', '.join(allowed)}; a value that works: 'selective'"
            )
    elif (match := re.fullmatch(r"(\w+):(\d+)", stated)) and match[1] in allowed:
        count = int(match[2])
        if count > num_layers:
            raise UserError(
                f"layout.recompute = {stated!r}: the model has {num_layers} blocks; allowed: up to {num_layers}; "
                f"a value that works: '{match[1]}:{num_layers}'"
            )
        policies = [match[1]] * count + ["none"] * (num_layers - count)
    else:
        policies = [stated] * num_layers
    resolved: list[Recompute] = []
    for policy in policies:
        if policy not in allowed:
            hint = did_you_mean(policy, allowed, repr)
            raise UserError(
                f"layout.recompute = {stated!r}: {policy!r} is unknown; {hint}allowed: {', '.join(allowed)}, 'full:N' for the "
                f"first N blocks, or a list with one of them a block; a value that works: 'full'"
            )
        resolved.append(policy)  # type: ignore[arg-type]
    return ("none", *resolved, *resolved[-1:] * model.mtp_layers, "none")


def offloaded_segments(
    stated: str | list[str], recompute: tuple[Recompute, ...], model: ModelConfig
) -> tuple[bool, ...]:
    """Whether each segment's activations are offloaded. `"none"`; `"activations"`; `"activations:4"` (the first 4 blocks that keep
    activations); or a list, one word a block. MTP modules stay. `recompute`: of every segment. Raises `UserError`."""
    num_layers = model.num_layers
    keeping = [policy != "full" for policy in recompute[1 : num_layers + 1]]
    if isinstance(stated, list):
        if len(stated) != num_layers:
            raise UserError(
                f"layout.offload lists {len(stated)} words for {num_layers} blocks; allowed: one a block, or one word, "
                f"{', '.join(OFFLOAD)}; a value that works: 'activations'"
            )
        words, count = stated, num_layers
    else:
        word, _, number = stated.partition(":")
        count = min(int(number), 10**6) if number.isdecimal() else num_layers
        if word == "none" or count > num_layers or (number and not number.isdecimal()):
            words = [stated] * num_layers
        else:
            words = [word] * num_layers
    for each in words:
        if each not in OFFLOAD:
            raise UserError(
                f"layout.offload = {stated!r}: {each!r} is unknown; {did_you_mean(each, OFFLOAD, repr)}allowed: "
                f"{', '.join(OFFLOAD)}, 'activations:N' for the first N of {num_layers} blocks, or a list with one word a block; "
                f"a value that works: 'activations'"
            )
    wanted = [each == "activations" for each in words]
    if any(wanted) and model.block is not None:
        raise UserError(
            f"layout.offload = {stated!r}: model.block = {model.block!r} keeps a graph of autograd; allowed with it: 'none'; a "
            f"value that works: 'none', with layout.recompute = 'full'"
        )
    if isinstance(stated, list) and any(w and not k for w, k in zip(wanted, keeping, strict=True)):
        raise UserError(
            "layout.offload names a block that layout.recompute computes again in full, which keeps nothing to offload; allowed: "
            "one of the two; a value that works: 'none' for that block"
        )
    if not any(wanted):
        return ()
    found, left = [], count
    for want, keep in zip(wanted, keeping, strict=True):
        found.append(want and keep and left > 0)
        left -= found[-1]
    return (False, *found, *[False] * (len(recompute) - num_layers - 1))
