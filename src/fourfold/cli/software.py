"""What the command line says of the software beside its name: `--products`, `--context-bytes`, `--slack`."""

from fourfold.cli.numbers import parse_number
from fourfold.config import UserError
from fourfold.simulate.run_prices import Products, Said


def said_of(products: Products | None, context_bytes: str | None, slack: float | None) -> Said:
    """The options as they were typed. Raises `UserError`."""
    held = None
    if context_bytes is not None:
        held = int(parse_number(context_bytes, "--context-bytes", "1.5G", most=1e12))
    if slack is not None and not 0 <= slack <= 10:
        raise UserError(f"--slack {slack}: allowed: 0 to 10, as a share of what is live; a value that works: 0.03")
    return Said(products, held, slack)


def repeated(stack: str | None, products: Products | None, context_bytes: str | None, slack: float | None) -> str:
    """The options again, for another command."""
    options = {"stack": stack, "products": products, "context-bytes": context_bytes, "slack": slack}
    return "".join(f" --{name} {value}" for name, value in options.items() if value is not None)
