"""Keys of `[layout]` on the command line of `fourfold plan`, as `layout.tp=8` or `layout.pp=2,4`: what the search is held to."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fourfold.config import UserError, did_you_mean
from fourfold.plan.constraints import FLAGS, KEPT, KEYS, Value, parse_value
from fourfold.plan.request import Request
from fourfold.plan.trainers import Trainer

PREFIX = "layout."
ALONE = (*KEPT, *FLAGS, "offload")
"""Keys that take one value, the same for all layouts."""


@dataclass
class LayoutOverrides:
    """`values`: of the keys that the search varies. `flags`: those of `FLAGS` that are stated, and `offload` where that is
    ruled out."""

    values: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)

    def applied(self, request: Request, trainer: Trainer) -> Request:
        """The request held to these values and to what the trainer can run. Raises `UserError` where it cannot divide sequences
        as stated."""
        split = self.flags.get("sequence_parallel", trainer.sequence_parallel)
        if split and not trainer.sequence_parallel:
            raise UserError(
                f"layout.sequence_parallel=true: tensor parallelism of {trainer.title} does not divide norms and residuals; "
                f"allowed: false; what works: leave it out, or another --for"
            )
        constraints = trainer.constraints.stating(self.values)
        if self.flags.get("offload_optimizer") and not request.can_offload:
            why = f"software {request.software.name!r} copies nothing to the host's memory"
            if not request.cluster.device.has_host_link:
                why = f"{request.cluster.device.name} is a processor, whose memory is its host's"
            raise UserError(f"layout.offload_optimizer=true: {why}; allowed: false; what works: leave it out")
        if self.flags.get("overlap_experts"):
            why = "" if request.model.num_experts else "this model has no experts, whose all-to-alls could overlap"
            if not request.software.is_own:
                why = f"software {request.software.name!r} runs no experts behind another microbatch"
            if why:
                raise UserError(f"layout.overlap_experts=true: {why}; allowed: false; what works: leave it out")
        return replace(
            request,
            constraints=constraints,
            sequence_parallel=split,
            overlap_experts=self.flags.get("overlap_experts"),
            offload=self.flags.get("offload", True),
            offload_optimizer=self.flags.get("offload_optimizer"),
        )


def split_overrides(overrides: Sequence[str]) -> tuple[LayoutOverrides, list[str]]:
    """Overrides that the search is held to, and the others, which a run file takes. Raises `UserError`."""
    layout, others = LayoutOverrides(), []
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        name = key.removeprefix(PREFIX)
        if key == "layout" or name == "auto" or not key.startswith(PREFIX) or name in KEPT:
            others.append(override)
            continue
        values = [value.strip(" \"'") for value in text.strip("[]").split(",")] if equals and text else []
        if name not in (*KEYS, *ALONE):
            raise UserError(_unknown(override, name))
        if not values or "" in values:
            raise UserError(f"override {override!r}: states no value; what works: {PREFIX}{name}=2, or several: 2,4")
        if name == "offload":
            if values != ["none"]:
                raise UserError(
                    f"override {override!r}: a search finds by itself which blocks offload; allowed: none; what works: leave it "
                    "out, or fourfold simulate with a run file that states it"
                )
            layout.flags[name] = False
        elif name in FLAGS:
            stated = [value.lower() for value in values]
            if stated not in (["true"], ["false"]):
                raise UserError(f"override {override!r}: allowed: true, false; a value that works: {PREFIX}{name}=true")
            layout.flags[name] = stated == ["true"]
        else:
            layout.values[name] = tuple(dict.fromkeys(parse_value(name, value, PREFIX) for value in values))
    return layout, others


def _unknown(override: str, name: str) -> str:
    if name == "segments_per_stage":
        return (
            f"override {override!r}: the search divides segments by cost itself; leave it out, or use fourfold simulate"
        )
    hint = did_you_mean(name, (*KEYS, *ALONE), lambda near: f"{PREFIX}{near}")
    return f"override {override!r}: no key of [layout]; {hint}allowed: {', '.join((*KEYS, *ALONE))}"
