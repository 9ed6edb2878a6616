"""`import fourfold as ff`: light, lazy, and the same whatever was imported before, though three functions have packages' names."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from itertools import pairwise, permutations

import pytest

import fourfold as ff
from fourfold.api import planning, programs, simulation, verification
from fourfold.api.inputs import MachineOptions, TrainOptions
from fourfold.api.options import PlanOptions, SimulateOptions
from fourfold.cli.app import build_app, main

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


COMMANDS = {"plan": PlanOptions, "simulate": SimulateOptions, "train": TrainOptions}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_function_has_the_options_of_the_command(name: str) -> None:
    """The command alone has options of the screen, of files and of other machines; the function what no shell can state."""
    flags = {each.name for each in build_app(name)[name].assemble_argument_collection() if each.name.startswith("--")}
    own = {f"--{each.strip('_').replace('_', '-')}" for each in inspect.signature(getattr(ff, name)).parameters}
    in_shell = {
        "--as",
        "--out",
        "--json",
        "--pp-rank",
        "--memory",
        "--trace",
        "--verbose",
        "--as-nearest",
        "--rehearse",
    }
    machines = {f"--{each.name.replace('_', '-')}" for each in fields(MachineOptions)}
    assert flags - in_shell - machines == own - {"--run", "--overrides", "--progress", "--quiet", "--out"}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_has_one_text_and_one_default(name: str, capsys) -> None:
    """`--help` prints the text under its field, and the function's argument is that field."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    signature, told = inspect.signature(getattr(ff, name)).parameters, texts_of(COMMANDS[name])
    for each in fields(COMMANDS[name]):
        assert signature[each.name].default is (
            each.default if each.default is not MISSING else inspect.Parameter.empty
        )
        if each.name not in ("run", "overrides", "progress", "quiet"):
            assert told[each.name] in shown, each.name


def texts_of(options: type) -> dict[str, str]:
    """The text under each field of a class and its bases."""
    found: dict[str, str] = {}
    for owner in reversed(options.__mro__[:-1]):
        body = ast.parse(inspect.getsource(owner)).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found
