"""From what a person says of a batch to sequences that layouts can divide."""

from math import gcd

from fourfold.config import UserError

NEAR = 0.07
"""How far a batch stated in tokens may be moved to a rounder number of sequences."""


def batch_sequences(tokens: float, sequence_length: int, devices: int = 1) -> int:
    """A batch of about so many tokens: the number of sequences within 7 % of it that has the most factors of two, the nearest of
    those; or of two and of the devices' odd part, where more devices divide that. `16M` of 8,192 are 1,953 sequences; 2,048 is
    what is meant, 1,920 on 60 devices. A multiple of 8 is left as it is. Raises `UserError`."""
    exact = tokens / sequence_length
    if exact < 1:
        raise UserError(
            f"--batch-tokens {tokens:g}: less than one sequence of {sequence_length}; a value that works: "
            f"--batch-tokens {sequence_length}"
        )
    if exact == int(exact) and int(exact) % 8 == 0:
        return int(exact)
    found = _rounded(exact, 1) or max(1, round(exact))
    among = _rounded(exact, devices // (devices & -devices))
    return among if among is not None and gcd(among, devices) > gcd(found, devices) else found


def _rounded(exact: float, odd: int) -> int | None:
    """The multiple of `odd` near enough that has the most factors of two."""
    for power in range(int(exact).bit_length(), -1, -1):
        step = 2**power * odd
        nearest = max(step, round(exact / step) * step)
        if abs(nearest - exact) <= NEAR * exact:
            return nearest
    return None
