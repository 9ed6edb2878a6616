"""The device page in a browser: the roofline and attention's tiles are the documents', every control changes what is drawn."""

import csv
import io
import json
from typing import Any
from urllib.parse import urlencode

from fourfold.cost.attention_traffic import tiles_of
from fourfold.report.units import format_bytes
from tests.explore.test_cluster import SMALL
from tests.explore.test_strategy import saved, until
from tests.support.explore_server import Watched, in_address


def place(keys: dict[str, str], **own: str) -> str:
    return f"#/device?{urlencode(keys | {f'device.{key}': value for key, value in own.items()})}"


def opened(watched: Watched, keys: dict[str, str], **own: str) -> Any:
    """The tab, with the roofline and attention drawn."""
    watched.open(place(keys, **own))
    watched.tab.wait_for_selector("h2:has-text('Roofline')")
    watched.tab.wait_for_selector("h2:has-text('Attention\\'s traffic')")
    return watched.tab


def test_the_roofline_s_points_are_the_document_s(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    rows = list(csv.DictReader(io.StringIO(saved(tab, "Roofline of h100-sxm", "CSV"))))
    document = json.loads(saved(tab, "Roofline of h100-sxm", "JSON"))
    assert tab.locator(".plot path").count() == len(rows) == len(document["kernels"])
    assert [float(row["FLOP/s"]) for row in rows] == [each["flops_per_second"] for each in document["kernels"]]
    tab.get_by_text("head", exact=True).click()
    heads = [each for each in document["kernels"] if each["segment"] == "head"]
    until(tab, f"document.querySelectorAll('.plot path').length === {len(heads)}")
    last = tab.get_by_role("list", name="Kernels, longest first").get_by_role("button").last
    last.focus()
    tab.keyboard.press("Enter")
    assert last.get_attribute("aria-pressed") == "true"
    assert heads[-1]["shape"] in tab.locator(".detail").inner_text()
    in_address(tab, "device.segment=head")


def test_attention_is_played_tile_by_tile(watched: Watched) -> None:
    tab = opened(watched, SMALL, tokens="2048", heads="4", head_dim="64", fast_kb="100", frame="0")
    shape = tiles_of(2048, 64, 102_400, causal=True)
    tiles = sum(len(shape.key_range(tile)) for tile in range(shape.query_tiles))
    until(tab, "document.querySelector('.player b')?.textContent.startsWith('0 of')")
    tab.get_by_role("button", name="Next tile").click()
    tab.wait_for_selector("p:has-text('queries 0 to 63, keys and values 0 to 199')")
    tab.get_by_label("Tiles done").focus()
    tab.keyboard.press("End")
    until(tab, f"document.querySelector('.player b').textContent.startsWith('{tiles} of {tiles}')")
    found = json.loads(saved(tab, "Attention's traffic", "JSON"))
    assert (found["query_rows"], found["key_rows"], found["computed_tiles"]) == (64, 200, tiles)
    by_name = {each["name"]: each["bytes"] for each in found["algorithms"]}
    shown = tab.locator(".bars").inner_text()
    for size in by_name.values():
        assert format_bytes(size) in shown
    tab.locator(".bar", has_text="Dao et al. 2022, algorithm 1").click()
    until(tab, "location.hash.includes('device.order=2022')")
    tab.get_by_text("none", exact=True).click()
    tab.wait_for_selector("p:has-text('No tile is skipped')")
    tab.get_by_role("button", name="Play the tiles").click()
    until(tab, "Number(new URLSearchParams(location.hash.split('?')[1]).get('device.frame')) > 42")
    tab.get_by_role("button", name="Pause the tiles").click()
    tab.get_by_role("button", name="The model's sizes").click()
    until(tab, "!location.hash.includes('device.tokens')")


def test_every_chart_has_a_table_and_gives_files(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    for title in ("Roofline of h100-sxm", "Attention's traffic"):
        assert saved(tab, title, "SVG").startswith("<svg")
        assert len(saved(tab, title, "CSV").splitlines()) > 1
        json.loads(saved(tab, title, "JSON"))
        tab.get_by_role("button", name=f"{title} as a table").click()
        assert tab.get_by_role("region", name=f"Table: {title}").locator("tbody tr").count() >= 1


def test_a_phone_shows_all_of_it(watched: Watched) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    tab = opened(watched, {"run": "preset:mixtral-8x22b-256"})
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
