"""Settings of the board's programs: small runs, compiled and priced on a cluster as `fourfold simulate` does."""

import tomllib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fourfold.api.inputs import readable_config
from fourfold.api.options import PlaceOptions
from fourfold.api.simulation import priced_run
from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.cost.prices import Prices
from fourfold.explore.board.tiny import model_keys
from fourfold.launch.resolve import ResolvedRun
from fourfold.program import Instruction, Program
from fourfold.program.instruction import Op

FOLDER = Path(__file__).parent
CLUSTERS = ("dgx-h100:8", "dgx-a100:8", "dgx-b200:8", "mi300x-8")
"""Clusters whose prices a person may choose, the first where none is chosen."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Setting(BaseModel):
    """A small run, as `settings.toml` has it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Name
    title: str
    text: str
    blocks: int
    hidden: int
    tokens: int
    microbatches: int
    own_lists: bool = False
    keys: dict[str, int | str]

    @property
    def run_keys(self) -> dict[str, Any]:
        """The keys of its run, dotted. The step is replayed as a CUDA graph, so that no host's time hides what the order does."""
        replicas = int(self.keys.get("layout.dp_shard", 1))
        return {
            **model_keys(self.blocks, self.hidden, self.tokens),
            "batch.global_sequences": self.microbatches * replicas,
            "precision.compute": "bf16",
            "run.device": "cuda",
            "run.cuda_graphs": True,
            **self.keys,
        }

    @property
    def num_ranks(self) -> int:
        """Ranks of the layout."""
        return int(self.keys.get("layout.pp", 1)) * int(self.keys.get("layout.dp_shard", 1))


@dataclass(frozen=True)
class RankList:
    """A list that is moved about: the ranks that run it, and the program as the compiler made it."""

    ranks: tuple[int, ...]
    program: Program

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Instructions in the compiler's order: their places there are their numbers."""
        return self.program.steps.instructions

    @cached_property
    def joined(self) -> dict[int, int]:
        """The number of what every WAIT joins in the compiler's order: the last of its name before it."""
        last, found = dict[str, int](), dict[int, int]()
        for number, step in enumerate(self.instructions):
            if step.op is Op.WAIT and step.handle in last:
                found[number] = last[step.handle]
            last[step.short] = number
        return found

    def started(self, number: int) -> Instruction | None:
        """The instruction that begins what a number's own instruction is about: the one that a WAIT joins, itself for any other."""
        step = self.instructions[number]
        if step.op is not Op.WAIT:
            return step
        return self.instructions[self.joined[number]] if number in self.joined else None


@dataclass(frozen=True)
class Compiled:
    """A setting, compiled for a cluster."""

    setting: Setting
    cluster: str
    resolved: ResolvedRun
    prices: Prices

    @cached_property
    def lists(self) -> tuple[RankList, ...]:
        """The lists: one for each rank where the setting says so, else one for each pipeline rank."""
        programs = self.resolved.train_programs
        if self.setting.own_lists:
            return tuple(RankList((rank,), programs[rank]) for rank in sorted(programs))
        ranks: dict[int, list[int]] = {}
        for rank in sorted(programs):
            ranks.setdefault(self.resolved.layout.pp_rank(rank), []).append(rank)
        return tuple(RankList(tuple(own), programs[own[0]]) for _, own in sorted(ranks.items()))


def is_movable(step: Instruction) -> bool:
    """Whether a person may move it: it starts something, joins it or frees gathered parameters. Computation stays, since its
    order is the schedule that the board's other part builds."""
    return step.op.is_start or step.op in (Op.WAIT, Op.FREE)


@lru_cache(maxsize=1)
def read_settings() -> dict[str, Setting]:
    """All settings by name, in order."""
    rows = tomllib.loads((FOLDER / "settings.toml").read_text(encoding="utf-8"))["setting"]
    return {row["id"]: Setting.model_validate(row) for row in rows}


def setting_named(name: str) -> Setting:
    """Raises `UserError`."""
    found = read_settings().get(name)
    if found is None:
        raise UserError(f"setting = {shortened(name)}: there is none; allowed: {', '.join(read_settings())}")
    return found


@lru_cache(maxsize=32)
def compiled(name: str, cluster: str, prefetch: int | None = None) -> Compiled:
    """A setting on a cluster; with another `layout.prefetch` where one is stated. Raises `UserError`."""
    if cluster not in CLUSTERS:
        raise UserError(f"cluster = {shortened(cluster)}: not one of the board's; allowed: {', '.join(CLUSTERS)}")
    setting = setting_named(name)
    keys = setting.run_keys | ({} if prefetch is None else {"layout.prefetch": prefetch})
    config = readable_config({}, keys, trust=False)
    resolved, _, prices = priced_run(config, PlaceOptions(cluster=cluster, ranks=setting.num_ranks))
    return Compiled(setting, cluster, resolved, prices)
