"""Laws about the page's sources: what several components need is written once, in `lib` or in `app.css`."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

from fourfold.program.ops import Op
from tools.page_types import operations_source

PAGE = Path(__file__).parents[2] / "src/fourfold/explore/page/src"
SOURCES = {
    path.relative_to(PAGE).as_posix(): path.read_text()
    for kind in ("*.ts", "*.svelte")
    for path in PAGE.rglob(kind)
    if ".test." not in path.name and "generated" not in path.parts
}


def where(pattern: str) -> list[str]:
    """The sources that a pattern occurs in."""
    return sorted(name for name, text in SOURCES.items() if re.search(pattern, text))


def test_an_operation_comes_to_the_page_from_its_row_alone() -> None:
    """A new operation needs no file of the page: the generated table has each, and no source knows one by its letter."""
    new = SimpleNamespace(value="@", info=SimpleNamespace(phase="forward", colour="F"))
    rows = [
        json.loads(line.rstrip(",")) for line in operations_source([*Op, new]).splitlines() if line.startswith("  {")
    ]
    assert rows == [{"letter": op.value, "phase": op.info.phase, "colour": op.info.colour} for op in [*Op, new]]
    letter = "|".join(re.escape(op.value) for op in Op if op.info.colour)
    table = rf"""operation-\w|["'](?:{letter})["'], ["'](?:{letter})["']|[{{,]\s*["']?(?:{letter})["']?: ["'`]"""
    assert len(SOURCES) > 80
    assert where(table) == []


def test_what_plays_has_one_clock() -> None:
    assert where(r'name=\{?[^}\n]*"pause"') == ["lib/ui/Player.svelte"]
    assert where(r"\bsetInterval\b|playing\b.*\$state|\bnew Clock\b") == ["lib/clock.svelte.ts", "lib/ui/Player.svelte"]


def test_a_canvas_is_drawn_from_a_list_of_shapes_alone() -> None:
    """So that what is given away as SVG is what is seen: nothing else reaches a canvas' context."""
    assert where(r"<canvas") == ["lib/charts/Canvas.svelte"]
    assert where(r"getContext\(\"2d\"\)") == ["lib/charts/Canvas.svelte", "lib/charts/shapes.ts", "lib/export.ts"]
    assert where(r"\.(fillRect|strokeRect|fillText|roundRect)\(") == ["lib/charts/shapes.ts"]
    assert where(r"toDataURL") == []


def test_a_look_is_written_once() -> None:
    """No two components have a rule of three declarations or more in common."""
    rules: dict[str, set[str]] = {}
    for name, text in SOURCES.items():
        style = text.partition("<style>")[2]
        for body in re.findall(r"\{([^{}]*)\}", style):
            declarations = sorted(filter(None, (each.strip() for each in body.split(";"))))
            if len(declarations) >= 3:
                rules.setdefault("; ".join(declarations), set()).add(name)
    assert len(rules) > 100
    assert {body: names for body, names in rules.items() if len(names) > 1} == {}
