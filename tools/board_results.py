"""Finds the shortest known steps for the board's goals that are to beat `auto`, and writes them where the page reads them.

python -m tools.board_results [ROUNDS]      searches so many rounds a goal (default 60), from what is known, and writes results.json

A round changes the best order so far at a few random places and goes on from there with the local search of `auto`, which the
planner cuts off after a second. Seed and rounds alone decide; what is not shorter than before is not written.
"""

import json
import random
import sys

from fourfold.explore.board.goals import RESULTS, Goal, known_results, orders_of, read_goals
from fourfold.explore.board.request import BETWEEN
from fourfold.program.schedule import Orders
from fourfold.program.schedule.auto import step_bound
from fourfold.program.schedule.check import entries_run, token
from fourfold.program.schedule.compute import numbered
from fourfold.program.schedule.execution import peak_activations
from fourfold.program.schedule.search import improve

ROUNDS, SEED = 60, 1
_BUDGET = 1500
"""Orders that a round may time."""
_SHAKES, _REACH = (1, 5), 4
"""Entries that a round moves, the first number to the second but for it; and how far."""
_ROUNDING = 1e-9


def shortest(goal: Goal, begin: Orders, rounds: int, seed: int = SEED) -> Orders:
    """The shortest order that so many rounds find within the goal's limit, from `begin` on."""
    rng = random.Random(seed)
    limits = [goal.limit * (1 + _ROUNDING) if goal.limit is not None else float("inf")] * goal.ranks
    bound = step_bound(goal.stage_ranks, goal.microbatches, goal.stage_times) * (1 + _ROUNDING)
    best = current = begin
    for _ in range(rounds):
        if goal.step(best) <= bound:
            break
        shaken = _shaken(goal, current, limits, rng)
        found = improve(shaken, goal.stage_ranks, goal.stage_times, limits, bound, _BUDGET)
        if goal.step(found) <= goal.step(best) + _ROUNDING:
            current = found
        if goal.step(found) < goal.step(best) - _ROUNDING:
            best = found
    return best


def _shaken(goal: Goal, orders: Orders, limits: list[float], rng: random.Random) -> Orders:
    """The orders with a few entries moved, as far as they stay executable and fit."""
    found = orders
    for _ in range(rng.randrange(*_SHAKES)):
        rank = rng.randrange(len(found))
        kinds = [(entry.op, entry.stage) for entry in found[rank]]
        index = rng.randrange(len(kinds))
        kind = kinds.pop(index)
        kinds.insert(max(0, index + rng.randrange(-_REACH, _REACH + 1)), kind)
        try:
            row = tuple(numbered(kinds, goal.microbatches))
        except (KeyError, IndexError):  # a weight half before its input half
            continue
        tried = (*found[:rank], row, *found[rank + 1 :])
        runs = entries_run(tried, goal.stage_ranks) == list(map(len, tried))
        if runs and peak_activations([row], goal.stage_times)[0] <= limits[rank]:
            found = tried
    return found


def main(arguments: list[str]) -> int:
    rounds = int(arguments[0]) if arguments else ROUNDS
    known = known_results() if RESULTS.is_file() else {}
    rows = {}
    for goal in read_goals():
        if goal.schedule is not None:
            continue
        auto = goal.step(goal.orders)
        begin = orders_of(known[goal.id]["link"]) if goal.id in known else goal.orders
        best = shortest(goal, begin, rounds)
        rows[goal.id] = {
            "auto": auto,
            "best": goal.step(best),
            "bound": step_bound(goal.stage_ranks, goal.microbatches, goal.stage_times),
            "link": BETWEEN.join(" ".join(map(token, order)) for order in best),
        }
        print(f"{goal.id}: auto {auto:g}, best {rows[goal.id]['best']:g}, never below {rows[goal.id]['bound']:g}")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
