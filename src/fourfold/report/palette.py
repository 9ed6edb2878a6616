"""The colours of everything that is drawn, for light and dark ground: terminal, pictures of the docs and the page share them.

Axes of the mesh take Okabe and Ito's colours (2008), which people who see two primaries tell apart. Memory that stays for the whole
step is blue, memory that comes and goes is warm. Time that computes is slate, so that communication stands out.
"""

from typing import NamedTuple

from fourfold.program.buffers import Memory
from fourfold.program.capabilities import BUFFERS, OPCODES


class Colour(NamedTuple):
    """`name`: in words. `light`, `dark`: on a light and on a dark ground. `kinds`: the words of documents that it stands for."""

    name: str
    light: str
    dark: str
    kinds: tuple[str, ...] = ()


AXES = {
    "tp": Colour("tensor parallel", "#d55e00", "#f0803c", ("tp", "tp_head", "tp_copy")),
    "pp": Colour("pipeline", "#009e73", "#2fc29a", ("pp", "tied")),
    "dp": Colour("data parallel", "#0072b2", "#4ba3dd", ("dp_shard", "dp_replicate", "dp", "edp")),
    "cp": Colour("context parallel", "#cc79a7", "#dd93bb", ("cp", "cp_ring", "cp_ulysses")),
    "ep": Colour("expert parallel", "#e69f00", "#f2b633", ("ep", "etp")),
}
"""A group of several axes has the colour of the first that it names."""

TIME = {
    "compute": Colour("compute", "#42526b", "#66788f"),
    "idle": Colour("bubble", "#d9dee5", "#2b333d", ("pipeline bubble", "imbalance", "waiting")),
}


def _buffers(memory: Memory) -> tuple[str, ...]:
    """Kinds of buffers that are counted with a part of memory."""
    return tuple(kind for kind, row in BUFFERS.items() if row.memory == memory)


MEMORY = {
    "parameters": Colour("parameters", "#1d4273", "#3f74b8", (*_buffers("parameters"), "units")),
    "gradients": Colour("gradients", "#4c7db0", "#74a5d8", _buffers("gradients")),
    "optimizer": Colour("optimizer states", "#9cc0e4", "#bcd6f0", _buffers("optimizer")),
    "activations": Colour(
        "activations",
        "#c2512f",
        "#e0734f",
        _buffers("activations"),
    ),
    "temporary": Colour(
        "temporary",
        "#e8b04b",
        "#efc26c",
        ("workspace", *_buffers("temporary")),
    ),
    "software": Colour("software", "#8b95a1", "#6d7884", ("software",)),
}
"""`kinds`: those of `program/buffers.py`; `software` is what the device holds beside the program."""


def _operation(letter: str, name: str, light: str, dark: str) -> Colour:
    kinds = [op.value for op in OPCODES if op.info.colour == letter and op.value != letter]
    return Colour(name, light, dark, (letter, *kinds))


OPERATIONS = {
    "F": _operation("F", "forward", "#2f62ad", "#6f9fe6"),
    "B": _operation("B", "backward", "#2c7a4b", "#5fb383"),
    "I": _operation("I", "input gradient", "#0b5563", "#7adbe3"),
    "W": _operation("W", "weight gradient", "#96611a", "#d9a252"),
    "K": _operation("K", "recompute", "#94407f", "#cf8fc4"),
    "U": _operation("U", "optimizer", "#7440cc", "#9d6cf5"),
}
"""By the letter that rows of operations name as their colour; `kinds`: the letters of all that do."""

LATER_STAGES = {"F": "#9cc0f5", "B": "#93d8ac", "I": "#86d5dc", "W": "#f0c27e"}
"""Operations of a rank's later stages, on a light ground."""

INK = Colour("ink", "#17202b", "#e8edf2")
SOFT = Colour("soft", "#525d6a", "#a0adba")
LINE = Colour("line", "#dcd8d0", "#27313b")
SURFACE = Colour("surface", "#ffffff", "#161d24")
"""Text, text of less weight, hairlines, and the ground of a picture: `app.css` has them as tokens."""

PALETTE: dict[str, dict[str, Colour]] = {"axis": AXES, "time": TIME, "memory": MEMORY, "operation": OPERATIONS}
