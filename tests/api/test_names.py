"""`import fourfold as ff`: light, lazy, and the same whatever was imported before, though three functions have packages' names."""

import inspect
import subprocess
import sys
from itertools import permutations

import pytest

import fourfold as ff
from fourfold.api import planning, programs, simulation, verification

FORMS = (
    "from fourfold.plan.planner import make_plan",
    "import fourfold.plan.planner; fourfold.plan.planner.make_plan",
    "import fourfold.plan.planner as p; p.make_plan",
    "import fourfold as ff; ff.plan",
    "from fourfold import plan; plan",
)
CHECK = """
import fourfold as ff, fourfold.plan.planner
from fourfold import plan, simulate, train
assert ff.plan is plan is sys.modules["fourfold.plan"] and fourfold.plan.planner.make_plan
assert all(callable(each) for each in (plan, simulate, train))
try:
    plan(model="llama3-8b")
except ff.UserError as error:
    assert "--cluster is missing" in str(error)
else:
    raise AssertionError
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.grid(1)
@pytest.mark.parametrize("order", list(permutations(FORMS, 2)), ids=lambda order: " | ".join(order))
def test_a_package_and_the_function_of_its_name_are_one_object_in_every_order_of_imports(
    order: tuple[str, str],
) -> None:
    python("\n".join((*order, CHECK)))


def test_to_import_it_is_to_import_nothing_else() -> None:
    code = "before = set(sys.modules)\nimport fourfold\nprint(*sorted(set(sys.modules) - before))"
    added = python(code).split()
    assert [name for name in added if name.partition(".")[0] not in sys.stdlib_module_names] == ["fourfold"]


def test_planning_simulating_and_verifying_import_no_torch() -> None:
    used = "ff.plan, ff.simulate, ff.Program, ff.verify, ff.load_cluster"
    python(f"""
import fourfold as ff
{used}
run = {{"model": {{"preset": "tiny"}}, "batch": {{"global_sequences": 4, "sequence_length": 64, "steps": 1}}}}
assert ff.verify(run)
assert ff.simulate(run, cluster="dgx-h100:1")._repr_html_()
assert ff.plan(run, cluster="dgx-h100:4", budget=1)._repr_html_()
assert not {{"torch", "transformers"}} & set(sys.modules), "torch"
""")


def test_names_are_what_they_are_called() -> None:
    assert ff.Program is programs.RunProgram
    assert ff.verify is verification.verify
    assert set(ff.__all__) <= set(dir(ff))
    assert all(hasattr(ff, name) for name in ff.__all__)
    with pytest.raises(AttributeError, match="no attribute 'paln'"):
        ff.paln  # noqa: B018


def test_a_callable_package_has_the_signature_of_its_function() -> None:
    assert inspect.signature(ff.plan) == inspect.signature(planning.plan)
    assert inspect.signature(ff.simulate) == inspect.signature(simulation.simulate)


@pytest.mark.parametrize("function", ["plan", "simulate"])
def test_the_function_has_the_options_of_the_command(function: str) -> None:
    """The command alone has options of the screen and of files."""
    from fourfold.cli import plan, simulate

    command = inspect.signature({"plan": plan.plan, "simulate": simulate.simulate}[function]).parameters
    own = inspect.signature(getattr(ff, function)).parameters
    on_screen = {"as_", "out", "json", "pp_rank", "memory", "trace", "verbose"}
    assert set(command) - on_screen == set(own) - {"progress"}
    for name in set(command) - on_screen - {"run", "overrides", "explain"}:
        assert command[name].default == own[name].default, name
