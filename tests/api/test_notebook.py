"""Results in a notebook: HTML that is well formed, complete in itself, and takes no text for markup."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fourfold as ff
from fourfold.api.training import TrainResult
from fourfold.config import RunConfig
from fourfold.program import Fault

EVIL = "<script>alert('x')</script>"
VOID = {"br"}


class Reader(HTMLParser):
    """Collects tags, attributes and text; fails where a tag does not close what is open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def read(result: object) -> Reader:
    found = Reader(result._repr_html_())  # type: ignore[attr-defined]
    assert found.tags <= {"div", "h4", "p", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert found.attributes <= {"class"}
    return found


def test_a_plan(here: Path) -> None:
    result = ff.plan("run.toml", cluster="dgx-h100:4", budget=4)
    text = read(result).text
    assert all(layout.candidate.words() in text for layout in result.layouts)
    nothing = read(ff.plan("preset:llama3-70b", cluster="dgx-h100:8", budget=2)).text
    assert "nothing was found to fit" in nothing


def test_a_simulation(here: Path) -> None:
    result = ff.simulate("run.toml", cluster="dgx-h100:4")
    text = read(result).text
    assert f"{100 * result.mfu:.1f} %" in text
    assert re.search(rf"^{re.escape(result.fit.phrase)}$", text, re.MULTILINE)
    assert result.fit.phrase.startswith("surely fits (9")
    assert all(kind in text for kind in result.summary.path)
    large = ff.simulate("preset:llama3-70b", {"layout.zero": 0}, cluster="dgx-h100:128")
    assert large.fit.phrase in read(large).text
    assert not large.fits


def test_a_program_and_its_verification(here: Path) -> None:
    program = ff.Program.of("run.toml", {"layout.pp": 2})
    assert program.instructions()[0].short in read(program).text
    assert "sound" in read(ff.verify(program)).text
    broken = program.with_instructions(program.instructions()[:-1])
    text = read(ff.verify(broken)).text
    assert "NOT sound" in text
    assert ff.verify(broken).faults[0].message in text
    read(ff.Program(program.resolved, "train", ()))


def test_text_is_never_markup(here: Path) -> None:
    program = ff.Program.of("run.toml")
    result = trained(Path("runs") / EVIL.replace("/", ""), program.resolved.config, (2.0,), None, EVIL)
    assert EVIL in read(result).text
    check = replace(ff.verify(program), faults=(Fault(0, 0, None, EVIL, "mend it"),))
    assert EVIL in read(check).text
    cluster = ff.load_cluster("dgx-h100:4")
    evil = replace(cluster, device=replace(cluster.device, name=EVIL))
    assert EVIL in read(ff.simulate("run.toml", cluster=evil)).text
    assert EVIL in read(ff.plan("run.toml", cluster=evil, budget=2)).text


@pytest.mark.parametrize("losses", [(), (float("nan"),), (2.0, 1.0)])
def test_a_run_that_trained(losses: tuple[float, ...], here: Path) -> None:
    config = ff.Program.of("run.toml").resolved.config
    assert f"{len(losses)}\n" in read(trained(Path("runs/x"), config, losses, 1.5, "none")).text


def trained(
    folder: Path, config: RunConfig, losses: Sequence[float], validation: float | None, report: str
) -> TrainResult:
    folder.mkdir(parents=True)
    rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TrainResult(folder, config, validation, report)
