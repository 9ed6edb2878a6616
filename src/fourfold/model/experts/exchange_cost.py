"""The exchange of tokens with their experts, line by line after `dispatch.py`: over ep as pairs, over etp as tokens. No torch.

Symbols as in `cost.py`.
"""

from dataclasses import dataclass

from fourfold.config import ModelConfig
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape


@dataclass(frozen=True)
class RoutedSizes:
    """The symbols above, as numbers."""

    routed: int
    served: int
    pairs: int
    hidden: int
    ffn: int
    shared_ffn: int
    experts: int
    local_experts: int


def routed_sizes(model: ModelConfig, shape: Shape) -> RoutedSizes:
    """Of one microbatch on one rank."""
    routed = shape.tokens // shape.tp
    return RoutedSizes(
        routed=routed,
        served=routed * shape.etp,
        pairs=routed * shape.etp * model.top_k,
        hidden=model.hidden_size,
        ffn=model.moe_ffn_size // shape.etp,
        shared_ffn=model.num_shared_experts * model.moe_ffn_size // shape.tp,
        experts=model.num_experts,
        local_experts=model.num_experts // shape.ep,
    )


def dispatch(tape: Tape, shape: Shape, z: RoutedSizes, width: int, name: str) -> None:
    """`dispatch`: rows of `width` bytes on their way, to be `name`."""
    tape.alloc(**{f"{name}_sent": z.pairs * width})
    tape.touch(z.pairs * width, 2, 2, part="sent" if shape.ep > 1 else "")
    if shape.ep > 1:
        tape.alloc(**{f"{name}_received": z.pairs * width})
        tape.send("all_to_all", "ep", z.pairs * width, f"{name}_sent")


def arrive(tape: Tape, shape: Shape, z: RoutedSizes, width: int, name: str) -> None:
    """`Transfer.wait` of rows dispatched: sorted by expert as `name`."""
    if shape.ep == 1:
        tape.rename(f"{name}_sent", name)
        return
    tape.join(f"{name}_sent")
    tape.free(f"{name}_sent")
    if z.local_experts > 1:
        tape.brief(z.pairs * width)
        tape.touch(z.pairs * width, 2, 2, part="sorted")
    tape.rename(f"{name}_received", name)


def combine(tape: Tape, shape: Shape, z: RoutedSizes, width: int, name: str) -> None:
    """`combine`: the rows `name` on their way back."""
    if shape.ep > 1:
        tape.alloc(**{f"{name}_unsorted": z.pairs * width if z.local_experts > 1 else 0})
        tape.alloc(**{f"{name}_back": z.pairs * width})
        if z.local_experts > 1:
            tape.touch(z.pairs * width, 2, 2, part="sorted")
        tape.send("all_to_all", "ep", z.pairs * width, f"{name}_back")
        if z.local_experts > 1 and name == "grad_rows":
            tape.free(name)


def arrive_home(tape: Tape, shape: Shape, z: RoutedSizes, width: int, name: str) -> None:
    """`Transfer.wait` of rows on their way back: summed a token, as `routed` (values a pair stay as they are)."""
    tape.join(f"{name}_back")
    tape.drop(f"{name}_unsorted")
    if name == "grad_rows" and shape.ep > 1:
        tape.drop(name)
    if name != "grad_scale":
        tape.alloc(routed=z.served * width)
        tape.touch(z.pairs * width, 2, 1, part="sent" if shape.ep > 1 else "")
    tape.drop(f"{name}_back", name)


def gather_over_etp(tape: Tape, shape: Shape, width: int, z: RoutedSizes, name: str | None = None) -> None:
    if shape.etp > 1:
        if name is not None:
            tape.alloc(**{name: z.served * width})
        tape.send("all_gather", "etp", z.served * width)


def scatter_over_etp(tape: Tape, shape: Shape, z: RoutedSizes, width: int, name: str, named: bool = True) -> None:
    if shape.etp == 1:
        return
    whole = z.served * width
    tape.send("reduce_scatter", "etp", whole)
    part = whole // shape.etp
    tape.brief(part + (whole - part if shape.exchange else 0))
    if named:
        tape.free(name)
        tape.alloc(**{name: part})
