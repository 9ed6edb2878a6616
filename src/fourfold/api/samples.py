"""`fourfold sample`: text that the model of a run writes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fourfold.config import UserError
from fourfold.launch.machine import require_packages
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The text to go on from, its length, and how it is drawn."""

    prompt: str = ""
    """The text to go on from. Default: the beginning of a document."""
    tokens: int = 200
    """How many tokens to write."""
    temperature: float = 0.8
    """0 takes the likeliest token each time; 1 draws from the model's own distribution."""
    seed: int = 0
    """Another number gives another text."""
    trust: bool = False
    """Import the Python code that the run names (model.block, layout.schedule = python:...). train imports it in any case."""


def sampled(run: Path, asked: SampleOptions, warn: Callable[[str], None]) -> str:
    """The prompt and what the model wrote, from the newest checkpoint. Raises `UserError` and `RunFailure`."""
    tokens, temperature, seed = asked.tokens, asked.temperature, asked.seed
    if tokens < 1:
        raise UserError(f"--tokens {tokens}: allowed: 1 or more; a value that works: --tokens 200")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"--temperature {temperature}: allowed: 0 or more; a value that works: --temperature 0.8")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed {seed}: allowed: 0 or more, below 2**63; a value that works: --seed 0")
    check_files(run)
    folder = RunFolder(run)
    if not folder.saved_steps(folder.require_config(asked.trust)):
        raise UserError(
            f"{run}: this run has saved no checkpoint yet; let it finish, or save more often (checkpoint.every_steps=100)"
        )
    require_packages("sample", "torch")
    from fourfold.train.sample import generate

    return generate(run, asked.prompt, tokens, temperature, seed, warn)
