"""The cluster page in a browser: its numbers are the documents', every control and key changes what is drawn."""

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from fourfold.api.simulation import SimulationResult, simulate
from fourfold.hardware import load_cluster
from fourfold.report.units import format_bytes
from tests.explore.test_strategy import saved, until
from tests.support.explore_server import Watched, address_now, in_address
from tests.support.one_state import DRAWN

SMALL = {
    "model.preset": "llama3.2-1b",
    "cluster": "dgx-h100:16",
    "batch.global_sequences": "64",
    "batch.sequence_length": "2048",
    "precision.compute": "bf16",
    "layout.tp": "4",
    "layout.zero": "1",
}
HUGE = {
    "model.preset": "llama3-405b",
    "cluster": "dgx-h100:102400",
    "batch.global_sequences": "12800",
    "batch.sequence_length": "8192",
    "precision.compute": "bf16",
    "layout.tp": "8",
    "layout.pp": "16",
    "layout.zero": "1",
}


def place(keys: dict[str, str], **own: str) -> str:
    return f"#/cluster?{urlencode(keys | {f'cluster.{key}': value for key, value in own.items()})}"


def opened(watched: Watched, keys: dict[str, str], **own: str) -> Any:
    """The tab, with the cluster and its groups drawn."""
    watched.open(place(keys, **own))
    tab = watched.tab
    until(tab, "Number(document.querySelector('canvas')?.dataset.blocks) > 0")
    tab.wait_for_selector("fieldset .axis[aria-pressed=true]")
    return tab


def data(tab: Any, key: str) -> float:
    return float(tab.locator("canvas").get_attribute(f"data-{key}"))


def predicted(keys: dict[str, str]) -> SimulationResult:
    overrides = {key: int(value) if value.isdecimal() else value for key, value in keys.items() if "." in key}
    return simulate({}, overrides, cluster=keys["cluster"])


def test_levels_and_links_are_the_file_s_and_simulate_s(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    tab.wait_for_selector(".busiest")
    found, expected, cluster = (
        json.loads(saved(tab, "Levels of the network", "JSON")),
        json.loads(json.dumps(predicted(SMALL).to_json())),
        load_cluster("dgx-h100:16"),
    )
    assert found["links"] == expected["links"]
    assert [(each["name"], each["bytes_per_second"], each["latency_seconds"]) for each in found["levels"]] == [
        (each.name, each.bytes_per_second, each.latency_seconds) for each in cluster.levels
    ]
    shown = tab.locator("figure:has(h2:has-text('Levels of the network')) svg[data-chart]").text_content()
    for level in cluster.levels:
        assert f"{format_bytes(level.bytes_per_second)}/s" in shown
    busiest = max(expected["links"], key=lambda link: link["full_seconds"])
    assert f"{busiest['name']} is busiest" in tab.locator(".said", has_text="busiest").inner_text()
    assert cluster.source[:40] in tab.locator("details", has_text="Where the figures are from").text_content()


def test_an_axis_and_a_rank_choose_the_group(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    layout = predicted(SMALL).resolved.layout
    for axes in ("dp_shard", "tp"):
        tab.locator("fieldset .axis", has_text=axes).click()
        tab.wait_for_selector(f"p.said:has-text('the {axes} group of rank 0')")
        groups = json.loads(saved(tab, "DGX H100 SuperPOD", "JSON"))["groups"]
        assert groups["axes"] == axes
        numbers = groups["group_numbers"]
        for rank in range(16):
            assert [other for other in range(16) if numbers[other] == numbers[rank]] == [
                *layout.group_of(rank, (axes,))
            ]
    field = tab.get_by_label("rank, exact value")
    field.fill("13")
    field.press("Enter")
    tab.wait_for_selector("p.said:has-text('group of rank 13')")
    in_address(tab, "cluster.rank=13")
    coordinates = tab.locator("dt:has-text('dp_shard of the rank') + dd").inner_text()
    assert coordinates == str(layout.coordinates(13)["dp_shard"])
    tab.get_by_role("application").focus()
    tab.keyboard.press("Control+z")
    tab.wait_for_selector("p.said:has-text('group of rank 0,')")


def test_the_drawing_is_zoomed_and_panned_by_keys_alone(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    drawing = tab.get_by_role("application")
    drawing.focus()
    top = data(tab, "level")
    for _ in range(2):
        tab.keyboard.press("PageDown")
        until(tab, f"document.querySelector('canvas').dataset.level < {top}")
        top = data(tab, "level")
    assert top == 0
    in_address(tab, "cluster.view=")
    tab.keyboard.press("0")
    until(tab, "document.querySelector('canvas').dataset.level == 2")
    until(tab, "!location.hash.includes('cluster.view')")
    tab.keyboard.press("+")
    until(tab, "location.hash.includes('cluster.view=1.5')")
    before = address_now(tab)
    tab.keyboard.press("Shift+ArrowRight")
    until(tab, f"location.href !== {json.dumps(before)}")
    for key, rank in (("ArrowRight", 1), ("ArrowDown", 5), ("ArrowLeft", 4), ("ArrowUp", 0)):
        tab.keyboard.press(key)
        tab.wait_for_selector(f"p.said:has-text('group of rank {rank},')")


def test_every_level_has_a_button_and_the_address_holds_the_part_that_is_seen(watched: Watched) -> None:
    tab = opened(watched, SMALL, rank="9")
    names = tab.locator("nav[aria-label='Levels around the rank'] button").all_inner_texts()
    assert names == ["rail", "nvlink 1", "device 9"]
    seen = []
    for name, level in zip(names, (2, 1, 0), strict=True):
        tab.get_by_role("button", name=name, exact=True).click()
        until(tab, f"document.querySelector('canvas').dataset.level == {level}")
        seen.append((address_now(tab), data(tab, "blocks")))
    assert seen[0][1] == 1 + 2 + 16
    assert seen[2][1] < seen[1][1] < seen[0][1]
    for url, blocks in reversed(seen):
        watched.open(url[url.index("#") :])
        until(tab, f"document.querySelector('canvas')?.dataset.blocks == {blocks:.0f}")


def test_a_device_is_chosen_and_pointed_at_with_the_pointer(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    box = tab.locator("canvas").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.72, box["y"] + box["height"] * 0.62)
    tip = tab.locator(".tip")
    device = int(re.search(r"device (\d+)", tip.inner_text())[1])
    assert f"nvlink {device // 8} " in tip.inner_text()
    tab.mouse.down()
    tab.mouse.up()
    tab.wait_for_selector(f"p.said:has-text('group of rank {device},')")
    still = tab.evaluate("location.hash")
    tab.mouse.wheel(0, -300)
    assert tab.evaluate("location.hash") == still, "the wheel scrolls the page"
    tab.evaluate("scrollTo(0, 0)")
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    until(tab, "location.hash.includes('cluster.view=')")


def test_the_cluster_is_chosen_and_one_that_the_layout_does_not_fit_is_drawn_too(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    tab.get_by_label("Cluster", exact=True).select_option("tpu-v5p-8960")
    tab.wait_for_selector("h2:has-text('TPU v5p pod')")
    in_address(tab, "cluster=tpu-v5p-8960:16")
    field = tab.get_by_label("devices, exact value")
    field.fill("2")
    field.press("Enter")
    tab.wait_for_selector("p:has-text('The layout cannot be drawn on it')")
    until(tab, "document.querySelector('.figures b').textContent === '2'")


def test_a_link_shows_its_part_of_a_published_run_s_cluster(watched: Watched) -> None:
    """The run's cluster is known only when the catalog is there."""
    tab = opened(watched, {"run": "preset:llama3-70b"}, view="2.5,0.3,0.4", axes="pp")
    tab.wait_for_selector(".busiest")
    in_address(tab, "cluster.view=2.5,0.3,0.4")
    assert tab.get_by_role("button", name="Undo").is_disabled()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_hundred_thousand_devices_are_few_shapes(watched: Watched, theme: str) -> None:
    watched.tab.emulate_media(color_scheme=theme)
    tab = opened(watched, HUGE, axes="dp_shard")
    tab.get_by_role("application").focus()
    seen = []
    for _ in range(4):
        tab.evaluate(DRAWN)
        seen.append((data(tab, "blocks"), data(tab, "milliseconds")))
        if len(seen) < 4:
            before = tab.evaluate("location.hash")
            tab.keyboard.press("PageDown")
            until(tab, f"location.hash !== {json.dumps(before)}")
    print([f"{blocks:.0f} shapes in {time:.1f} ms" for blocks, time in seen])
    assert all(0 < blocks < 30_000 for blocks, _ in seen)


def test_every_chart_has_a_table_and_gives_files(watched: Watched) -> None:
    tab = opened(watched, SMALL)
    tab.wait_for_selector(".busiest")
    for title in ("DGX H100 SuperPOD", "Levels of the network"):
        assert saved(tab, title, "SVG").startswith("<svg")
        assert len(saved(tab, title, "CSV").splitlines()) > 1
        json.loads(saved(tab, title, "JSON"))
        tab.get_by_role("button", name=f"{title} as a table").click()
        assert tab.get_by_role("region", name=f"Table: {title}").locator("tbody tr").count() >= 1


def test_a_phone_shows_all_of_it(watched: Watched) -> None:
    watched.tab.set_viewport_size({"width": 390, "height": 844})
    tab = opened(watched, {"run": "preset:mixtral-8x22b-256"})
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_opens_on_512_devices_and_says_what_each_level_carries(watched: Watched) -> None:
    """Where the address states no set-up: tp fills a node, cp a rack, pp and data parallelism cross them."""
    watched.open("#/cluster")
    tab = watched.tab
    tab.wait_for_selector("p:has-text('An example')")
    tab.wait_for_selector("h2:text-is('What flows over the step')")
    until(tab, "document.querySelector('.figures b')?.textContent === '512'")
    assert tab.evaluate("location.hash") == "#/cluster"
    levels = json.loads(saved(tab, "Levels of the network", "JSON"))
    assert [each["devices"] for each in levels["levels"]] == [8, 16, 512]
    text = tab.locator("figure[data-name=axes]").inner_text()
    assert "9 times slower than inside nvlink" in text
    total = sum(link["total_bytes"] for link in levels["links"])
    assert f"nvlink carries {100 * levels['links'][0]['total_bytes'] / total:.1f} %" in text
    for axis, where in (
        ("tp", "all 8 ranks inside one nvlink"),
        ("cp", "all in one rack"),
        ("pp", "all in one pod"),
        ("dp_shard", "all in one pod"),
    ):
        words = tab.locator("figure[data-name=axes] .facts > div", has_text=re.compile(rf"^\s*{axis} \d")).first
        assert where in words.inner_text()
    tab.get_by_label("rank, exact value").fill("13")
    tab.keyboard.press("Enter")
    in_address(tab, "cluster.rank=13")
    assert "model.preset" not in tab.evaluate("location.hash"), "to look around states no set-up"
    tab.get_by_label("devices, exact value").fill("1024")
    tab.keyboard.press("Enter")
    in_address(tab, "cluster=h100-24576:1024")
    in_address(tab, "model.preset=llama3-70b")
    assert tab.locator("p:has-text('An example')").count() == 0


def test_colours_are_what_flows_at_the_clock_s_moment(watched: Watched) -> None:
    tab = opened(watched, SMALL, moment="50")
    flows = json.loads(saved(tab, "What flows over the step", "JSON"))
    assert (
        flows["flows_over_time"]
        == json.loads(json.dumps(predicted(SMALL).to_json(advice=False, flows=True)))["flows_over_time"]
    )
    [curve] = flows["flows_over_time"]
    piece = len(curve["ends_seconds"]) // 2
    rate = sum(each[piece] for each in curve["levels"][0].values())
    assert f"nvlink {format_bytes(rate)}/s" in tab.locator("p.said", has_text="Now, 50 %").inner_text()
    before = tab.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    tab.locator("label:has-text('groups')").click()
    in_address(tab, "cluster.colour=groups")
    until(tab, f"document.querySelector('canvas').toDataURL() !== {json.dumps(before)}")
    assert "Filled: the tp group" in tab.locator("p.said", has_text="group of rank").inner_text()
    tab.locator("label:has-text('what flows')").click()
    until(tab, "!location.hash.includes('cluster.colour')")
    tab.get_by_label("Moment of the step").press("End")
    in_address(tab, "cluster.moment=100")
    tab.wait_for_selector("p.said:has-text('Now, 100 %')")
