"""Small pictures of the explore page's places, and how far two of them differ. Chromium scales, writes and compares them.

Letters look different on every machine, so pictures are compared by the mean colours of blocks of the screen.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.explore_server import enter

FOLDER = Path(__file__).parents[1] / "explore" / "pictures"
THEMES = ("light", "dark")
SIZE = {"width": 1360, "height": 900}
SCALE = 0.25
"""A stored picture is so much smaller than the screen."""
BLOCK = 8
"""Pixels of a stored picture that are compared by their mean."""
UNLIKE = 20.0
"""Blocks whose means are so far apart, of 255, differ."""
MOST_UNLIKE = 0.03
"""Share of blocks that may differ."""


@dataclass(frozen=True)
class Place:
    """Something to look at: an address, what is there once all is drawn, and the part of the page (all that a window shows)."""

    address: str
    ready: str
    part: str = ""


PLACES = {
    "strategy": Place("#/strategy", "[aria-busy=false] h1:has-text('Fits')"),
    "pipeline": Place("#/pipeline?pipeline.schedule=1f1b", "text=The verifier proved"),
    "collectives": Place("#/collectives", "main:has(.strip button.now) figure .pick"),
    "device": Place("#/device", "h2:has-text('s traffic')"),
    "cluster": Place("#/cluster?cluster=dgx-h100%3A64&layout.tp=8", ".busiest"),
    "tasks": Place("#/tasks", "text=of 42 solved"),
    "block": Place("#/parallelism", "figure svg .band"),
    "experts": Place("#/parallelism?parallelism.part=expert", "path.way"),
    "zero": Place("#/parallelism?parallelism.part=zero", "figure:has(h2:text-is('HSDP')) svg path"),
}
"""Pages are added here, and `python -m tools.page_pictures NAME` stores their pictures."""

SHRINK = """
async ({ picture, scale }) => {
  const image = await createImageBitmap(await (await fetch(picture)).blob());
  const [width, height] = [Math.round(image.width * scale), Math.round(image.height * scale)];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  return canvas.toDataURL("image/webp", 0.8);
}
"""
COMPARE = """
async ({ stored, taken, block, unlike }) => {
  const load = async picture => createImageBitmap(await (await fetch(picture)).blob());
  const images = await Promise.all([stored, taken].map(load));
  const width = Math.max(...images.map(each => each.width)), height = Math.max(...images.map(each => each.height));
  const both = Object.assign(document.createElement("canvas"), { width: 2 * width + 8, height });
  const beside = both.getContext("2d");
  images.forEach((image, index) => beside.drawImage(image, index * (width + 8), 0));
  const columns = Math.ceil(width / block), rows = Math.ceil(height / block);
  const means = images.map((_, index) => {
    const data = beside.getImageData(index * (width + 8), 0, width, height).data;
    const sums = new Float64Array(columns * rows * 3);
    for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) for (let part = 0; part < 3; part += 1)
      sums[3 * (Math.floor(y / block) * columns + Math.floor(x / block)) + part] += data[4 * (y * width + x) + part];
    return sums.map(sum => sum / (block * block));
  });
  let differing = 0;
  for (let place = 0; place < columns * rows; place += 1)
    if ([0, 1, 2].some(part => Math.abs(means[0][3 * place + part] - means[1][3 * place + part]) > unlike)) differing += 1;
  return { share: differing / (columns * rows), beside: both.toDataURL("image/png") };
}
"""


def stored_at(name: str, theme: str) -> Path:
    return FOLDER / f"{name}-{theme}.webp"


def taken(browser: Any, address: str, name: str, theme: str, style: str = "") -> bytes:
    """A picture of a place as it looks now. `style`: rules that are added to the page's."""
    place = PLACES[name]
    context = browser.new_context(viewport=SIZE, color_scheme=theme, reduced_motion="reduce", bypass_csp=True)
    enter(context, address)
    tab = context.new_page()
    tab.goto(address + place.address)
    tab.wait_for_selector(place.ready, timeout=60_000)
    tab.wait_for_load_state("networkidle")
    if place.part:
        tab.set_viewport_size({**SIZE, "height": 3200})  # nothing that sticks to the window lies above the part
    tab.add_style_tag(content=style or ":root { caret-color: transparent }")
    tab.mouse.move(0, 0)
    shown = tab.locator(place.part) if place.part else tab
    picture = _address("png", shown.screenshot(animations="disabled"))
    small = tab.evaluate(SHRINK, {"picture": picture, "scale": SCALE})
    context.close()
    return base64.b64decode(small.partition(",")[2])


def difference(browser: Any, stored: bytes, found: bytes) -> tuple[float, bytes]:
    """The share of blocks that differ, and both pictures beside each other, as PNG."""
    tab = browser.new_page()
    pictures = {"stored": _address("webp", stored), "taken": _address("webp", found)}
    answer = tab.evaluate(COMPARE, {**pictures, "block": BLOCK, "unlike": UNLIKE})
    tab.close()
    return float(answer["share"]), base64.b64decode(answer["beside"].partition(",")[2])


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
