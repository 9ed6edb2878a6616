"""No page shows two states at once: until the documents of a newer one are there, all that a person sees is the older one's."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.explore.test_cluster import SMALL as ON_CLUSTER
from tests.explore.test_cluster import place as cluster_place
from tests.explore.test_device import place as device_place
from tests.explore.test_strategy import EIGHT
from tests.explore.test_strategy import place as strategy_place
from tests.explore.test_tasks import opened as guessed
from tests.explore.test_tasks import place as task_place
from tests.support.explore_server import Watched
from tests.support.one_state import check_one_state


def fill(label: str, value: str) -> Callable[[Any], None]:
    def act(tab: Any) -> None:
        tab.get_by_label(f"{label}, exact value").fill(value)
        tab.keyboard.press("Enter")

    return act


def click(selector: str) -> Callable[[Any], None]:
    return lambda tab: tab.locator(selector).first.click()


PROVED = "document.body.innerText.includes('The verifier proved') && document.querySelector('tr.own') !== null"
ROOFED = "document.querySelector('.busiest') !== null"
TILED = "document.querySelector('.bar') !== null"
COMPARED = strategy_place(EIGHT | {"strategy.compare": "1", "strategy.edit": "b", "b.layout.zero": "3"})
JUDGED = "document.querySelector('.result h2') !== null"
CASES = {
    "strategy": (strategy_place(EIGHT | {"layout.zero": "3"}), fill("tensor, tp", "2"), "true"),
    "strategy, a trial": (strategy_place(EIGHT), click("[aria-label=Trials] button:nth-child(2)"), "true"),
    "strategy, the second layout": (COMPARED, fill("tensor, tp", "4"), "true"),
    "pipeline": ("#/pipeline?pipeline.schedule=gpipe", fill("microbatches, M", "12"), PROVED),
    "pipeline, a schedule": (
        "#/pipeline?pipeline.schedule=gpipe",
        lambda tab: tab.get_by_label("Schedule", exact=True).select_option("zb_h1"),
        PROVED,
    ),
    "pipeline, times of the model": ("#/pipeline", click("label:has-text('of the model')"), PROVED),
    "collectives": (
        "#/collectives?collectives.step=3",
        lambda tab: tab.get_by_label("Collective", exact=True).select_option("all_gather"),
        "true",
    ),
    "collectives, ranks": ("#/collectives", fill("ranks", "6"), "true"),
    "parallelism": ("#/parallelism?parallelism.block=2", click("fieldset:has-text('Tensor') label:has-text('2')"), "true"),
    "parallelism, a part": ("#/parallelism", click("label:has-text('context')"), "true"),
    "cluster, a rank": (cluster_place(ON_CLUSTER), fill("rank", "13"), ROOFED),
    "cluster, an axis": (cluster_place(ON_CLUSTER), click("fieldset .axis:has-text('dp_shard')"), ROOFED),
    "cluster, devices": (cluster_place(ON_CLUSTER), fill("devices", "32"), ROOFED),
    "device, attention": (device_place(ON_CLUSTER, frame="9"), fill("heads", "4"), TILED),
    "accuracy": ("#/accuracy?accuracy.software=llm.c", click("tbody .pick"), "document.querySelector('[data-point]') !== null"),
    "tasks": (task_place("eight-copies"), click("fieldset:has-text('ZeRO') label:has-text('1')"), JUDGED),
}  # fmt: skip
"""Where a person is, what is changed there, and what holds of a page that is drawn in full."""


@pytest.mark.parametrize("case", CASES)
def test_a_page_shows_one_state(watched: Watched, case: str) -> None:
    """While the server's answers are held back, nothing but the control has changed; then the page is what its address gives."""
    if case == "tasks":
        guessed(watched, "eight-copies")  # a task shows no number before its guess, which stays with the browser
    check_one_state(watched, *CASES[case])
