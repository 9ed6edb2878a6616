"""The search's moves and the shares of its budget: a move never loses a layout, and a share is stated once."""

import ast
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

from fourfold.config.layout_section import LayoutSection
from fourfold.hardware import load_cluster
from fourfold.plan import search as module
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.neighbours import CHANGES, is_legal, neighbours
from fourfold.plan.search import MOVES, search
from tests.plan.test_bounds import EXPERTS, request

PLAN = Path(__file__).parents[2] / "src" / "fourfold" / "plan"


def test_moves_add_layouts_that_fit_and_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the queue found little, so that the moves have something to find."""
    asked = request(8, 32)
    monkeypatch.setattr(module, "SHARES", replace(module.SHARES, ranking=(0.01, 0.0, 0.0)))
    found: list[set[Candidate]] = []
    for number in range(len(MOVES) + 1):
        monkeypatch.setattr(module, "MOVES", MOVES[:number])
        best = search(asked, budget=4, keep=1000).best
        assert all(each.memory_bytes <= asked.memory_bytes for each in best)
        found.append({each.candidate for each in best})
    assert all(before <= after for before, after in pairwise(found))
    assert found[0] < found[-1]


@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_a_change_leads_to_legal_layouts_and_back(more: dict) -> None:
    """Every change has a use, and what two changes lead to is a layout of the request."""
    asked = request(8, 32, **more)
    here = search(asked, budget=1, keep=1).best[0].candidate
    around = neighbours(asked, here)
    assert all(is_legal(asked, each) for each in around)
    assert len({*around}) == len(around)
    assert here not in around
    some = around[:: len(around) // 12]
    assert sum(here in neighbours(asked, each) for each in some) > len(some) / 2
    used = [change for each in (here, *around) for change in CHANGES if next(change(asked, each), None) is not None]
    experts = {each for each in CHANGES if "expert" in (each.__doc__ or "").lower()}
    assert {*CHANGES} - {*used} <= (set() if more else experts)


def test_each_share_of_the_budget_stands_in_the_one_table() -> None:
    """No part of a budget is a number that stands elsewhere."""
    calls = 0
    for path in PLAN.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.BinOp):
                named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                number = any(isinstance(each, ast.Constant) for each in (node.left, node.right))
                assert not (named == {"budget"} and number), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "part":
                calls += 1
                stated = [ast.unparse(each) for each in node.args]
                assert all(each.startswith("SHARES.") for each in stated), f"{path.name}:{node.lineno}: {stated}"
    assert calls > 6


def test_a_request_on_other_devices_keeps_all_that_was_asked() -> None:
    """All but the prices there."""
    asked = replace(
        request(16, 64), most_risk=0.1, offload=False, kept=LayoutSection(prefetch=2), sequence_parallel=False
    )
    there = asked.on(load_cluster("dgx-h100:32"))
    assert there.devices == 32
    assert [each.name for each in fields(asked) if getattr(asked, each.name) != getattr(there, each.name)] == [
        "template"
    ]
