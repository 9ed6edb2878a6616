"""Breaks programs at random, and runs what the verifier calls sound: `python -m tools.program_mutants --results FILE`.

Each mutant is one to three edits of a step's programs under one of some thirty layouts (`tests/support/random_edits.py`); number
and seed alone decide which. All that the verifier accepts is run by real ranks in fp64, over memory that holds NaN until it is
written, and must give the losses, gradients and parameters of transformers in one process. FILE holds a line for each mutant that
was judged; a run that was stopped goes on there. Exit code 1: one was wrong.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fourfold.program import Program, StepSpec, lower_pipeline, verify
from tests.support.edited_runs import difference, run_of
from tests.support.random_edits import CASES, broken, given_to_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.program_mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--number", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, required=True, help="a file of lines, read and added to")
    chosen = parser.parse_args(arguments)
    known = _known(chosen.results, chosen.seed)
    steps = [_step(case) for case in CASES]
    with chosen.results.open("a", encoding="utf-8") as out:
        for number in range(chosen.number):
            if number in known:
                continue
            known[number] = _verdict(random.Random(f"{chosen.seed} {number}"), steps[number % len(steps)])
            line = {"seed": chosen.seed, "number": number, "verdict": known[number]}
            out.write(json.dumps(line) + "\n")
            out.flush()
    judged = {number: verdict for number, verdict in known.items() if number < chosen.number}
    wrong = {number: verdict for number, verdict in judged.items() if verdict not in ("same", "refused", "unchanged")}
    counts = Counter("wrong" if number in wrong else verdict for number, verdict in judged.items())
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    for number, verdict in sorted(wrong.items()):
        print(f"{number} under {CASES[number % len(CASES)]}: {verdict.splitlines()[-1]}")
    return int(bool(wrong))


def _known(path: Path, seed: int) -> dict[int, str]:
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["number"]: line["verdict"] for line in lines if line["seed"] == seed}


def _step(case: dict[str, object]) -> tuple[dict[str, object], StepSpec, list[Program]]:
    table, spec = run_of(case)
    return table, spec, lower_pipeline(spec)


def _verdict(rng: random.Random, step: tuple[dict[str, object], StepSpec, list[Program]]) -> str:
    """`unchanged`, `refused`, `same`, or how the step that was accepted differs from the right one."""
    table, spec, programs = step
    pp_rank = rng.randrange(len(programs))
    mutant = broken(programs[pp_rank], rng)
    if mutant == programs[pp_rank]:
        return "unchanged"
    given = given_to_ranks(programs, mutant, spec, rng)
    if verify(given, spec):
        return "refused"
    return difference(table, given) or "same"


if __name__ == "__main__":
    raise SystemExit(main())
