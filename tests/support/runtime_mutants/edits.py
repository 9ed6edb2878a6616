"""The table of mutants, and what they are made of: attributes, functions and reductions replaced."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.runtime.executor import Executor
from tests.support.programs import with_collectives

MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


def mutant(function: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
    context = contextmanager(function)
    MUTANTS[function.__name__] = context
    return context


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """The attribute replaced by `make(original)`."""
    return patch.object(owner, name, make(getattr(owner, name)))


@contextmanager
def everywhere(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """A function of fourfold replaced by `make(original)` wherever it was imported."""
    modules = [
        module
        for path, module in sys.modules.items()
        if path.startswith(("fourfold.model.", "fourfold.runtime.")) and hasattr(module, name)
    ]
    (original,) = {vars(module)[name] for module in modules}
    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, name, make(original)))
        yield


def reductions_without(lost: Callable[[Any, str], bool]) -> Any:
    """Reductions of gradients without the collectives over axes for which `lost(flat layout, axes)`."""

    def make(original: Any) -> Any:
        def reduction(self: Executor, step: Any, unit: Any, staging: Any, first: bool) -> Any:
            flat = unit.flat
            sums = tuple(part for part in flat.sums if not lost(flat, part[0]))
            kept = tuple(c for c in step.collectives[len(flat.sums) :] if not lost(flat, c.axes))
            collectives = (*step.collectives[: len(sums)], *kept)
            unit = replace(unit, flat=replace(flat, sums=sums))
            yield from [()] * (len(step.collectives) - len(collectives))
            yield from original(
                self, step._replace(work=with_collectives(step.work, collectives)), unit, staging, first
            )

        return reduction

    return replaced(Executor, "_reduction", make)


def part_of(x: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of dim 0, of its own values."""
    return x.view(group.size, x.shape[0] // group.size, *x.shape[1:])[group.index].clone()
