"""Finds a person's own block, `model.block = "python:MODULE:NAME"`, and its declarations. Only its module may import torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from fourfold.config import ModelConfig, UserError
from fourfold.config.errors import attribute_of, error_text

PREFIX = "python:"


@dataclass(frozen=True)
class OwnParameter:
    """One parameter of a block. `init_std`: of a normal distribution truncated at three standard deviations; 0.0: zeros; None:
    ones. `weight_decay`: whether the optimizer decays it."""

    name: str
    shape: tuple[int, ...]
    init_std: float | None
    weight_decay: bool = True


@dataclass(frozen=True)
class OwnInputs:
    """Inputs of a block beside hidden states. `cos`, `sin`: [seq, 1, width / 2], or [batch, seq, 1, width / 2] where documents
    are masked, width that of a head; of no width where positions are learned. `document_lengths`: of each row, or None where
    attention may cross documents."""

    cos: Any
    sin: Any
    document_lengths: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True)
class OwnBlock:
    """A decoder block, every layer the same.

    `parameters(model)` declares one layer's parameters. `forward(x, weights, inputs, model)` gives the next hidden states from x
    [batch, seq, hidden], in new memory: an ordinary differentiable function of torch, without dropout, state or collectives.
    `weights` are the parameters by name, in the compute format.
    """

    parameters: Callable[[ModelConfig], Sequence[OwnParameter]]
    forward: Callable[[Any, Mapping[str, Any], OwnInputs, ModelConfig], Any]


@lru_cache(maxsize=16)
def own_block(name: str) -> OwnBlock:
    """The block that `model.block` names. Imports its module. Raises `UserError`."""
    module_name, _, attribute = name.removeprefix(PREFIX).partition(":")
    if not name.startswith(PREFIX) or not module_name or not attribute:
        raise UserError(
            f"model.block = {name!r}: allowed: 'python:MODULE:NAME', the name of an OwnBlock; "
            f"a value that works: 'python:parallel_block:BLOCK' with examples/own_block on PYTHONPATH"
        )
    found = attribute_of(f"model.block = {name!r}", module_name, attribute)
    if not isinstance(found, OwnBlock):
        raise UserError(
            f"model.block = {name!r}: {module_name}.{attribute} is {found!r:.60}; allowed: an OwnBlock; "
            f"what works: {attribute} = fourfold.model.own.OwnBlock(parameters, forward)"
        )
    return found


@lru_cache(maxsize=64)
def own_parameters(model: ModelConfig) -> tuple[OwnParameter, ...]:
    """The parameters of one layer, checked. Raises `UserError`."""
    assert model.block is not None
    source = f"model.block = {model.block!r}: parameters"
    try:
        declared = tuple(own_block(model.block).parameters(model))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{source}: {error_text(error)}; what works: a function of the model that gives a list"
        ) from error
    works = "what works: OwnParameter('norm', (model.hidden_size,), None)"
    for each in declared:
        if not isinstance(each, OwnParameter) or not isinstance(each.name, str) or not each.name:
            raise UserError(f"{source} gives {each!r:.80}; allowed: OwnParameter; {works}")
        sizes = each.shape
        if not isinstance(sizes, tuple) or not sizes or not all(isinstance(n, int) and n > 0 for n in sizes):
            raise UserError(
                f"{source}: {each.name} has the shape {sizes!r}; allowed: one positive size or more; {works}"
            )
        std = each.init_std
        if std is not None and not (isinstance(std, int | float) and isfinite(std) and std >= 0):
            raise UserError(f"{source}: {each.name} has init_std = {std!r}; allowed: None (ones), 0.0 or more; {works}")
    names = [each.name for each in declared]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        fault = "declares nothing" if twice is None else f"declares {twice!r} twice"
        raise UserError(f"{source} {fault}; allowed: at least one, each of another name; {works}")
    return declared
