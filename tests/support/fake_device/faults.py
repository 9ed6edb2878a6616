"""Faults that a rank on a fake device may have, one after another or several at once."""

from dataclasses import dataclass
from math import inf

KINDS = ("compute", "collective", "transfer", "host", "slow", "reader", "save", "link")


@dataclass(frozen=True)
class PlantedFault:
    """A fault on `rank` in step `step`, at instruction number `index` of its program.

    compute     a kernel of the instruction takes `seconds`
    collective  the host's call that starts a collective, or any other call to the network, does not return for so long
    transfer    the same, of a transfer
    link        the instruction's traffic takes so much longer, for all that take part
    host        the host stops before the instruction for so long, and nobody can ask it for its calls
    slow        from this step on kernels take `factor` times as long
    reader      the data of the step take so long to read
    save        this rank's part of the save before the step takes so long
    """

    kind: str
    rank: int
    step: int
    index: int = 0
    seconds: float = inf
    factor: float = 1.0
