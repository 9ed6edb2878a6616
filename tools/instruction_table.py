"""The table of instructions in docs/program.md, from the rows of `fourfold.program.capabilities`.

python -m tools.instruction_table            # fails where the page differs
python -m tools.instruction_table --write    # writes the page as it should be
"""

import sys
from pathlib import Path

from fourfold.program.capabilities import OPCODES
from fourfold.program.opcode import Names

PAGE = Path(__file__).resolve().parent.parent / "docs/program.md"
_HEAD = "| letter | instruction | does |\n|---|---|---|\n"
_EXAMPLES: dict[Names, str] = {
    "nothing": "",
    "microbatch": " m0",
    "segment": " b3 m0",
    "transfer": " b4 m0 r1",
    "unit": " b3",
    "unit of a microbatch": " b3 m0",
    "segment or unit": " b3 m0",
    "instruction": " G b3",
}


def table() -> str:
    """The table in Markdown: of every operation an example's short form, its name, and what it does."""
    rows = (f"| `{op.value}{_EXAMPLES[op.info.names]}` | {op.words} | {op.info.does} |\n" for op in OPCODES)
    return _HEAD + "".join(rows)


def with_table(page: str) -> str:
    """The page with the table in place of the one that it has."""
    before, _, rest = page.partition(_HEAD)
    assert rest, "docs/program.md has no table of instructions"
    return before + table() + rest[rest.index("\n\n") + 1 :]


def main(arguments: list[str]) -> int:
    """Exit code: 1 where the page differs and `--write` is not given."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if wanted == page:
        return 0
    if "--write" in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    print(
        f"{PAGE}: its table differs from the rows of operations; what works: python -m tools.instruction_table --write"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
