"""The recorder reads flags and keywords from sources that it never runs."""

import argparse
import subprocess
from pathlib import Path

import pytest

from tools.trainer_definitions.flags import flags_of
from tools.trainer_definitions.source import Sources, Tree

ARGUMENTS = """
import a_module_that_is_not_there
from package.config import Sizes

def _add_first(parser):
    group = parser.add_argument_group(title="first")
    group.add_argument("--degree", "-d", type=int, default=1)
    group.add_argument("--kind", type=str, choices=["ring", "tree"])
    group.add_argument("--many", nargs="+", type=float)
    group.add_argument("--any", nargs="*")
    group.add_argument("--switch", action="store_true")
    group.add_argument("--both", action=argparse.BooleanOptionalAction)
    group.add_argument("--own", type=own_type)
    return parser

def _add_second(parser):
    exclude = ["hidden"]
    ArgumentGroupFactory(Sizes, exclude=exclude).build_group(parser, "second")
    return parser

def other(parser):
    parser.add_argument("--not-added", type=int)
"""
CONFIG = """
from dataclasses import dataclass, field
from .base import Base as Parent

@dataclass
class Sizes(Parent):
    width: int = 1
    hidden: int = 2
    ratio: Optional[float] = None
    mode: Literal["a", "b"] | None = None
    level: Literal[0, 1] = 0
    names: list[str] = field(default_factory=list)
    off: bool = False
    on: bool = True
    renamed: float = field(default=1.0, metadata={"argparse_meta": {"arg_names": ["--other-name"]}})
    three: list[int] | None = field(default=None, metadata={"argparse_meta": {"nargs": 3}})
    made: int = field(init=False, default=0)
"""
BASE = """
class Base:
    depth: int = 1
    class Config:
        inner: str
def function(one: int, *, two: str = "", three=None): ...
"""
FLAGS = {
    "--degree": "int", "--kind": "str ring|tree", "--many": "float+", "--any": "str*", "--switch": "switch", "--own": "str",
    "--both": "switch", "--no-both": "switch", "--depth": "int", "--width": "int", "--ratio": "float", "--mode": "str a|b",
    "--level": "int 0|1", "--names": "str+", "--off": "switch", "--no-on": "switch", "--disable-on": "switch",
    "--other-name": "float", "--three": "int+", "-d": "int",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    files = {"arguments": ARGUMENTS, "config/__init__": CONFIG, "config/base": BASE}
    (package / "config").mkdir()
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return tmp_path


def test_flags_are_those_of_calls_and_of_dataclasses(folder: Path) -> None:
    (folder / "package-1.2.0.dist-info").mkdir()
    assert Tree(folder).version("package") == "1.2.0"
    assert flags_of(Sources(Tree(folder)), "package.arguments", "_add_") == FLAGS


def test_the_newest_commit_of_a_repository_is_read(folder: Path) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    (folder / "package" / "arguments.py").write_text("")
    tree = Tree(folder)
    assert flags_of(Sources(tree), "package.arguments", "_add_") == FLAGS
    assert len(tree.version("package")) == 40


def test_keywords_are_those_of_functions_and_of_dataclasses_in_classes(folder: Path) -> None:
    sources = Sources(Tree(folder))
    assert list(sources.parameters("package.config.base", "function")) == ["one", "two", "three"]
    assert sources.configuration("package.config", "Parent") == "Parent.Config"
    assert list(sources.parameters("package.config", "Parent.Config")) == ["inner"]
    with pytest.raises(SystemExit, match=r"package.config has no Missing"):
        sources.find("package.config", "Missing")


def test_argparse_agrees(folder: Path) -> None:
    """The calls, run as Python, make the flags that were read from them."""
    parser = argparse.ArgumentParser(add_help=False)
    text = ARGUMENTS.split("def _add_second")[0].split("from package.config import Sizes")[1]
    space = {"argparse": argparse, "own_type": str}
    exec(text, space)
    space["_add_first"](parser)
    made = {option for action in parser._actions for option in action.option_strings}
    assert made == set(flags_of(Sources(Tree(folder)), "package.arguments", "_add_first"))
