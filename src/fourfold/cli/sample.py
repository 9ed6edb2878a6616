"""`fourfold sample`: lets the model of a run write."""

import sys
from pathlib import Path

from fourfold.cli.options import Flag
from fourfold.config import UserError
from fourfold.launch.machine import require_packages
from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import check_files


def sample(
    run: Path,
    /,
    *,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    trust: Flag = False,
) -> int:
    """Let the model of a run write, from its latest checkpoint.

    Parameters
    ----------
    run
        The folder of a run.
    prompt
        The text to go on from. Default: the beginning of a document.
    tokens
        How many tokens to write.
    temperature
        0 takes the likeliest token each time; 1 draws from the model's own distribution.
    seed
        Another number gives another text.
    trust
        Import the Python code that the run names (model.block, layout.schedule = python:...). train imports it in any case.
    """
    if tokens < 1:
        raise UserError(f"--tokens {tokens}: allowed: 1 or more; a value that works: --tokens 200")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"--temperature {temperature}: allowed: 0 or more; a value that works: --temperature 0.8")
    if not 0 <= seed < 2**63:
        raise UserError(f"--seed {seed}: allowed: 0 or more, below 2**63; a value that works: --seed 0")
    check_files(run)
    folder = RunFolder(run)
    if not folder.saved_steps(folder.require_config(trust)):
        raise UserError(
            f"{run}: this run has saved no checkpoint yet; let it finish, or save more often (checkpoint.every_steps=100)"
        )
    require_packages("sample", "torch")
    from fourfold.train.sample import generate

    print(generate(run, prompt, tokens, temperature, seed, _warn))
    return 0


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
