"""Fits the step times of some software profiles to their own rows, or one constant of a profile; all else stays as it is.

    python benchmarks/published/fit_profiles.py DIR... --only deepspeed maxtext-gpu:expert_speed
        [--write] [--rows 4] [--sweep-rows 20] [--rounds 2] [--jobs 2]

As `fit_constants.py` fits all, from the prior of what is fitted and from what ships of the rest. Prints the errors of the rows by
what ships and by what is fitted, and either with their source left out of the fit."""

import argparse
from collections.abc import Sequence

import numpy as np

from case import PublishedCase
from fit_constants import Model, informed, say_errors, with_memory_rows
from fit_file import FITTED, PRIOR, read, read_informed, write
from fit_rows import Shared, TimedRows, timed_rows
from fit_sample import chosen, telling
from fit_table import SOFTWARE, Node, Numbers, Table, constants_of, copied, moved_by
from row_command import cases_of, row_parser, rows_or_exit


def profile_in(only: str) -> str:
    """The profile of what is asked for."""
    return only.partition(":")[0]


def started(prior: Table, start: Table, only: Sequence[str]) -> Table:
    """Constants as they start, each profile's in full, so that none follows another: those to fit where the prior has them. A
    profile that `start` has not is the prior's, its memory too."""
    known, before, table = constants_of(start), constants_of(prior), copied(start)
    table["software"] = {name: known.entry(name) for name in start["software"]}
    for each in only:
        profile, _, name = each.partition(":")
        entry = before.entry(profile)
        names = [name] if name else list(SOFTWARE)
        table["software"].setdefault(profile, entry).update({key: entry[key] for key in names})
    return table


def is_free(node: Node, cases: Sequence[PublishedCase], only: Sequence[str]) -> bool:
    """Whether a departure is of what is to be fitted."""
    profiles = {case.software for case in cases if node.owner in (case.software, case.trainer)}
    return any(each in only or f"{each}:{node.name}" in only for each in profiles)


def say_profiles(name: str, cases: Sequence[PublishedCase], errors: Numbers) -> None:
    for profile in sorted({case.software for case in cases}):
        rows = np.array([case.software == profile for case in cases])
        sources = len({case.file for case in cases if case.software == profile})
        say_errors(f"{profile}, {name}: {sources} sources", errors[rows])


def main() -> None:
    parser = row_parser(__doc__, jobs=2)
    parser.add_argument("--only", nargs="+", required=True, metavar="PROFILE[:CONSTANT]")
    parser.add_argument("--write", action="store_true", help="write fitted.toml and fitted_on.json")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--sweep-rows", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    fit(parser, parser.parse_args())


def fit(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    profiles = {profile_in(each) for each in options.only}
    rows = [case for case in telling(cases_of(rows_or_exit(parser, options.folders))) if case.software in profiles]
    if options.rounds < 1 or not rows:
        parser.error("--rounds: 1 at least; --only: profiles of the rows, such as deepspeed")
    prior, shipped = read(PRIOR), read(FITTED)
    timed = Shared.among(options.jobs, chosen(rows, options.rows, options.sweep_rows), timed_rows)
    table = base = started(prior, shipped, options.only)
    parts = timed.at(shipped)
    cases, errors = _errors(parts)
    say_profiles("shipped", cases, errors)
    left_out = model_of(parts, base, options.only).left_out_errors(errors, lambda case: case.file)
    say_profiles("shipped, source left out", cases, left_out)
    for _ in range(options.rounds):
        model = model_of(timed.at(table), base, options.only)
        table = moved_by(base, model.departures(), profiles)
    cases, errors = _errors(timed.at(table))
    say_profiles("fitted", cases, errors)
    say_profiles("fitted, source left out", cases, model.left_out_errors(errors, lambda case: case.file))
    if options.write:
        write(table, _informed(table, cases, profiles.intersection(options.only)))


def model_of(parts: list[TimedRows], base: Table, only: Sequence[str]) -> Model:
    """The rows' model in which nothing else departs."""
    model = Model.of(parts, base)
    return model.holding(lambda node: is_free(node, model.cases, only))


def _errors(parts: list[TimedRows]) -> tuple[list[PublishedCase], Numbers]:
    return [case for part in parts for case in part.cases], np.concatenate([part.errors for part in parts])


def _informed(table: Table, cases: list[PublishedCase], profiles: set[str]) -> Table:
    """Which rows every entry was fitted on: of memory, and of profiles of which one constant was fitted, as before."""
    known = read_informed()
    found = with_memory_rows(informed(table, cases, [])["software"], known["software"])
    mine = {name: found[name] for name in profiles}
    return {**known, "software": dict(sorted((known["software"] | mine).items()))}


if __name__ == "__main__":
    main()
