"""The `fourfold` command: one file a subcommand, imported when it is asked for."""

from fourfold.simulate.paused_garbage_collection import without_collection

with without_collection():  # of the many objects that modules make, none is garbage
    from fourfold.cli.app import main

__all__ = ["main"]
