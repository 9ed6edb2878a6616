"""`fourfold cluster` and `fourfold calibrate`: the file of a machine, from a few words or from measurements."""

import shutil
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from fourfold.api.calibration import CalibrateOptions, calibrated
from fourfold.api.new_file import check_new_file, write_new_file
from fourfold.api.numbers import parse_number
from fourfold.cli.options import Json, print_answer, print_json
from fourfold.cost.fitted import fitted
from fourfold.hardware import parse_cluster
from fourfold.hardware.new_cluster import Figure, new_cluster


def cluster(
    action: Literal["new"],
    /,
    *,
    nodes: int = 1,
    device: str,
    network: str | None = None,
    link: str | None = None,
    price: str | None = None,
    out: Path = Path("cluster.toml"),
    json: Json = False,
) -> int:
    """Write a cluster file from a few words, and say what each figure means and where it comes from.

    Parameters
    ----------
    action
        new: write a new file.
    nodes
        Number of nodes.
    device
        NAME:DEVICES, the devices of a node, for example a100-40gb:8, or FILE.toml:DEVICES. fourfold list devices prints the names.
    network
        A node's ports to the other nodes: 8x400G, 2x100GbE, 1x200Gb-IB, 8xndr, 4x100G-EFA. Rates are in bits per second.
    link
        How the devices of a node are joined: nvlink4, pcie5, or a rate of one device in one direction, as 448GB/s. Default: as in a
        cluster that comes with fourfold.
    price
        Dollars for a device hour, for costs.
    out
        The file to write.
    """
    dollars = None if price is None else parse_number(price, "--price", "2.5", 0.0, 1e6)
    made = new_cluster(nodes, device, network, link, dollars)
    check_new_file(out, "lab.toml", f"{out.stem}-2.toml", ".toml")
    found = parse_cluster(made.text, str(out))
    constants = fitted()
    inside, outside = constants.link_share, constants.link_share * constants.link_constants.network_share
    share = Figure(
        "efficiency",
        f"{inside:.0%}" if len(found.levels) == 1 else f"{inside:.0%}, {outside:.0%}",
        "of these rates, in the node and between nodes, is what large collectives reach: fitted to measured runs, not in the file",
    )
    write_new_file(out, made.text)
    figures = [*made.figures, share]
    if json:
        document = {"file": str(out), "devices": found.devices, "figures": [asdict(each) for each in figures]}
        print_json(document)
        return 0
    print(f"{out}: {made.title}, {found.devices} devices\n")
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    for each in figures:
        print(textwrap.fill(f"{each.what:<22}  {each.value:<12} {each.source}", width, subsequent_indent=" " * 37))
    grown = f" {out}:{2 * found.devices} has twice as many devices." if found.levels[-1].scalable else ""
    print(f"\nuse it as: --cluster {out}.{grown} Every figure can be changed in the file: docs/clusters.md.")
    return 0


def calibrate(*, asked: CalibrateOptions, json: Json = False) -> int:
    """Measure this machine, or one device of it, and write a file for --cluster or the run file's [cluster] preset.

    The machine: matmuls and attention by shape, whole segments, the optimizer, collectives and transfers by size and group, with
    each of the given numbers of ranks running at once. One device: the same kernels in larger shapes, peaks, memory, launches, and
    the constants that describe them, for a cluster of such devices. Stop everything else first.
    """
    found = calibrated(asked, quiet=json)
    used = f"written to {found.out}; use it as: fourfold simulate RUN.toml --cluster {found.out}"
    return print_answer(json, lambda: found.document, lambda: [*found.lines, used])
