"""From what a person says of a batch to sequences that layouts can divide."""

from fourfold.config import UserError

NEAR = 0.07
"""How far a batch stated in tokens may be moved to a rounder number of sequences."""


def batch_sequences(tokens: float, sequence_length: int) -> int:
    """A batch of about so many tokens: the number of sequences within 7 % of it that has the most factors of two, the nearest of
    those. `16M` of 8,192 are 1,953 sequences; 2,048 is what is meant. Raises `UserError`."""
    exact = tokens / sequence_length
    if exact < 1:
        raise UserError(
            f"--batch-tokens {tokens:g}: less than one sequence of {sequence_length}; a value that works: "
            f"--batch-tokens {sequence_length}"
        )
    if exact == int(exact) and int(exact) % 8 == 0:
        return int(exact)
    for power in range(int(exact).bit_length(), -1, -1):
        step = 2**power
        nearest = max(step, round(exact / step) * step)
        if abs(nearest - exact) <= NEAR * exact:
            return nearest
    return max(1, round(exact))
