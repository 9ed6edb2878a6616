"""The `fourfold` command: one file a subcommand, imported when it is asked for."""

from fourfold.cli.app import main

__all__ = ["main"]
