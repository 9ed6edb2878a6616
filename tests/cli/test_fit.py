"""`fourfold fit` on the command line: the file that it writes is a software for `simulate`."""

import json
from dataclasses import replace
from pathlib import Path

from fourfold.cost.fitted import fitted
from fourfold.simulate.run_prices import software_named
from fourfold.validate.fit import FREE

EXAMPLE = Path(__file__).parents[2] / "examples" / "cases.toml"


def test_the_file_is_a_software_for_simulate(fourfold, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    result = fourfold("fit", EXAMPLE, "--out", mine)
    assert result.code == 0, result.err
    assert f"written to {mine}" in result.out
    profile = software_named(str(mine))
    base = fitted().software("megatron-2023")
    assert profile.name == "mine"
    moved = {free.name: getattr(base, free.name) for constants in FREE.values() for free in constants}
    assert any(getattr(profile, name) != each for name, each in moved.items())
    assert profile.base == base.name
    assert replace(profile, **moved, name=base.name, base="") == base
    run = ("preset:gpt3-175b", "--json")
    steps = {
        name: json.loads(fourfold("simulate", *run, "--software", name).out)["step_seconds"]
        for name in (str(mine), "megatron-2023")
    }
    assert steps[str(mine)] != steps["megatron-2023"]
    again = fourfold("fit", EXAMPLE, "--out", mine)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_fit_as_a_document(fourfold) -> None:
    found = json.loads(fourfold("fit", EXAMPLE, "--json").out)
    assert found["base"] == "megatron-2023"
    assert found["software_file"] is None
    assert set(found["constants"]) <= {free.name for constants in FREE.values() for free in constants}
    assert len(found["before"]) == len(found["after"]) == len(found["left_out"]) == 10


def test_what_is_wrong_has_one_message(fourfold) -> None:
    for arguments, says in ((), "no case is given"), ((EXAMPLE, "--out", "mine.txt"), "ends in .toml"):
        result = fourfold("fit", *arguments)
        assert (result.code, says in result.err, result.out) == (2, True, "")
