"""The command's fixtures: its folder with a run file, and the command itself, to compare with."""

from tests.cli.conftest import fourfold, here

__all__ = ["fourfold", "here"]
