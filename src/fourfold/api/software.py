"""The options that override a software profile: `--gemm-dtype`, `--context-bytes`, `--fragmentation`."""

from typing import get_args

from fourfold.api.inputs import Number, check_word
from fourfold.api.numbers import parse_number
from fourfold.config import UserError
from fourfold.config.schema import GemmDtype
from fourfold.simulate.run_prices import SoftwareOverrides


def software_overrides_of(
    gemm_dtype: GemmDtype | None, context_bytes: Number | None, fragmentation: float | None
) -> SoftwareOverrides:
    """The options as they were stated. Raises `UserError`."""
    check_word("--gemm-dtype", gemm_dtype, get_args(GemmDtype))
    held = None
    if context_bytes is not None:
        held = int(parse_number(context_bytes, "--context-bytes", "1.5G", most=1e12))
    if fragmentation is not None and not 0 <= fragmentation <= 10:
        raise UserError(
            f"--fragmentation {fragmentation}: allowed: 0 to 10, as a share of what is live; a value that works: 0.03"
        )
    return SoftwareOverrides(gemm_dtype, held, fragmentation)


def repeated(
    software: str | None, gemm_dtype: GemmDtype | None, context_bytes: Number | None, fragmentation: float | None
) -> str:
    """The options again, for another command."""
    options = {
        "software": software,
        "gemm-dtype": gemm_dtype,
        "context-bytes": context_bytes,
        "fragmentation": fragmentation,
    }
    return "".join(f" --{name} {value}" for name, value in options.items() if value is not None)
