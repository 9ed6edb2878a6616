"""A layout's keys are described once: sections, resolved layouts, the search's layouts and documents have them."""

from dataclasses import fields
from pathlib import Path

from fourfold.config import layout_section
from fourfold.config.layout_section import LAYOUT_KEYS, LayoutSection
from fourfold.layout import Layout
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.constraints import FLAGS, KEPT, KEYS
from fourfold.results.prediction import LayoutDocument
from tests.support.edited_source import asked_with

RUN = """
[model]
num_layers = 2
hidden_size = 16
num_heads = 2
ffn_size = 32
[batch]
global_sequences = 8
sequence_length = 16
steps = 1
"""
NEW = '    trial: bool = False\n    """A key that is tried."""\n'
ASK = """
import fourfold
from fourfold.api.programs import RunProgram
from fourfold.explore.catalog import catalog_document
from fourfold.launch.automatic import automatic_layout
from fourfold.config import load_run
from pathlib import Path
from tools.docs import run_file_page

run, stated = sys.argv[3], ["layout.trial=true"]
layout = RunProgram.of(run, overrides=stated).resolved.layout
simulated = fourfold.simulate(run, cluster="dgx-h100:1", overrides=stated).to_json()
planned = fourfold.plan(run, cluster="dgx-h100:2", overrides=[*stated, "layout.tp=1"]).to_json()
config = load_run(Path(run), ["layout.auto=true", "layout.trial=true", "cluster.preset=dgx-h100"])
automatic = automatic_layout(config, RunProgram.of(run).resolved.model, 2)
print(json.dumps({
    "resolved": layout.trial,
    "simulated": simulated["layout"]["trial"],
    "planned": [each["layout"]["trial"] for each in planned["best"]],
    "automatic": automatic.trial,
    "help": [each["help"] for each in catalog_document()["keys"] if each["key"] == "layout.trial"],
    "reference": "| `trial` | boolean | `false` | A key that is tried. |" in run_file_page.page(),
}))
"""


def test_a_key_that_is_described_appears_everywhere(tmp_path: Path) -> None:
    """In the run file, on the command line, in resolved layouts and documents, in all layouts of a plan and of `layout = "auto"`,
    with its text on the page and in the reference: nothing but the description is edited."""
    run = tmp_path / "run.toml"
    run.write_text(RUN, encoding="utf-8")
    found = asked_with(layout_section, "    prefetch: ", f"{NEW}    prefetch: ", ASK, tmp_path, str(run))
    assert found.pop("help") == ["A key that is tried."]
    assert {*found.pop("planned"), *found.values()} == {True}, found


def test_records_of_a_layout_have_the_keys_that_are_described() -> None:
    keys = set(LAYOUT_KEYS)
    assert set(LayoutSection.model_fields) == {*keys, "auto"}
    assert {each.name for each in fields(LayoutDocument)} == keys - {"segments_per_stage", "prefetch"}
    assert {each.name for each in fields(Candidate)} == {*keys, "activations"}
    assert keys < {each.name for each in fields(Layout)}
    assert {each.name for each in fields(BlockShape)} < keys


def test_a_search_varies_finds_or_keeps_every_key() -> None:
    assert sorted((*KEYS, *FLAGS, *KEPT, "offload", "segments_per_stage")) == sorted(LAYOUT_KEYS)
