"""Names that fourfold knows, with figures to choose by: models, clusters, devices, software, runs, schedules.

Each kind imports what it lists, so that no list waits for what another needs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fourfold.config import ModelSection, load_run, preset_names, run_preset_names
from fourfold.config.presets import RUN_PRESET
from fourfold.hardware import cluster_names, device_names, load_cluster, load_device
from fourfold.report.units import format_count, table

Kind = Literal["models", "clusters", "devices", "software", "presets", "schedules"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Row = dict[str, Any]
USUAL_VOCABULARY = 32_000
"""Vocabulary of a model that states none."""
BUBBLE_RANKS, BUBBLE_MICROBATCHES = 4, 16
AXES = ("pp", "virtual_stages", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True)
class Listing:
    """A kind of names. `rows`: the figures of each, units in the keys. `head`, `cells`: columns of the table; `left`: those of
    text. `notes`: what the columns mean, and a command to go on with."""

    rows: Callable[[], Iterable[Row]]
    cells: Callable[[Row], list[str]]
    head: tuple[str, ...]
    left: tuple[int, ...]
    notes: tuple[str, ...]


def rows(kind: Kind) -> list[Row]:
    """Everything of a kind, with units in the keys. None: not stated."""
    return [*_LISTINGS[kind].rows()]


def listing_lines(kind: Kind) -> list[str]:
    """The rows as a table, what its columns mean, and a command to go on with."""
    each = _LISTINGS[kind]
    return [*table(each.head, [each.cells(row) for row in each.rows()], each.left), "", *each.notes]


def _models() -> Iterable[Row]:
    from fourfold.huggingface import resolve_model
    from fourfold.model.counts import num_active_parameters, num_parameters

    for name in preset_names():
        model = resolve_model(ModelSection(preset=name), USUAL_VOCABULARY)
        sizes = {key: value for key, value in vars(model).items() if isinstance(value, int | float | str)}
        counts = {"parameters": num_parameters(model), "active_parameters": num_active_parameters(model)}
        yield {"name": name, **counts, **sizes}


def _model_cells(row: Row) -> list[str]:
    experts = f"{row['top_k']} of {row['num_experts']}" if row["num_experts"] else "-"
    active = format_count(row["active_parameters"]) if row["num_experts"] else "-"
    sizes = [str(row[key]) for key in ("num_layers", "hidden_size", "vocab_size", "max_position")]
    return [row["name"], format_count(row["parameters"]), active, experts, *sizes]


def _clusters() -> Iterable[Row]:
    for name in cluster_names():
        cluster = load_cluster(name)
        yield {
            "name": name,
            "description": cluster.name,
            "device": cluster.device.key,
            "devices": cluster.devices,
            "devices_per_node": cluster.node_devices,
            "levels": [asdict(level) for level in cluster.levels],
            "scalable": cluster.all_levels[-1].scalable,
            "dollars_per_device_hour": cluster.dollars_per_device_hour,
        }


def _cluster_cells(row: Row) -> list[str]:
    levels = [f"{each['name']} {each['bytes_per_second'] / 1e9:g}" for each in row["levels"]]
    price = row["dollars_per_device_hour"]
    sizes = [f"{row['devices']:,}{'+' if row['scalable'] else ''}", str(row["devices_per_node"])]
    return [row["name"], row["device"], *sizes, "-" if price is None else f"{price:g}", ", ".join(levels)]


def _devices() -> Iterable[Row]:
    for name in device_names():
        device = load_device(name)
        yield {**asdict(device), "name": name, "description": device.name}


def _device_cells(row: Row) -> list[str]:
    peaks = row["peak_flops_per_second"]
    speeds = [f"{peaks[name] / 1e12:,.0f}" if name in peaks else "-" for name in ("fp4", "fp8", "bf16", "fp32")]
    power = "-" if row["power_watts"] is None else f"{row['power_watts']:g}"
    memory = [f"{row['memory_bytes'] / 2**30:.0f}", f"{row['memory_bytes_per_second'] / 1e9:,.0f}"]
    return [row["name"], *memory, *speeds, power, row["description"]]


def _software() -> Iterable[Row]:
    from fourfold.cost.fitted import framework_of
    from fourfold.cost.software import OWN_SOFTWARE
    from fourfold.simulate.run_prices import software_named, software_names

    names = software_names()
    for name in [OWN_SOFTWARE, *sorted({framework_of(each) for each in names} - {OWN_SOFTWARE})]:
        dated = [each for each in names if each != name and framework_of(each) == name]
        constants = {key: value for key, value in asdict(software_named(name)).items() if key != "base"}
        yield {**constants, "name": name, "dated": dated}


def _software_cells(row: Row) -> list[str]:
    from fourfold.cost.fitted import fitted

    usual = asdict(fitted().software("default"))
    stated = [key for key in usual if key in row and key != "name"]
    switches = [key for key in stated if isinstance(row[key], bool | str) and row[key] != usual[key]]
    texts = [
        f"{'' if row[key] else 'no '}{key}" if isinstance(row[key], bool) else f"{key} {row[key]}" for key in switches
    ]
    dates = " ".join(each.removeprefix(f"{row['name']}-") for each in row["dated"])
    speeds = [f"{row['fused']:.0%}", f"{row['gemm_speed']:.2f}", f"{row['link_speed']:.2f}"]
    return [row["name"], *speeds, dates, ", ".join(texts)]


def _presets() -> Iterable[Row]:
    for name in run_preset_names():
        run = load_run(Path(RUN_PRESET + name))
        layout = {axis: value for axis in AXES if (value := getattr(run.layout, axis)) not in (None, 1)}
        yield {
            "name": RUN_PRESET + name,
            "model": run.model.preset,
            "cluster": run.cluster.preset,
            "software": run.cluster.software,
            "sequence_length": run.batch.sequence_length,
            "global_sequences": run.batch.global_sequences,
            "layout": {**layout, "zero": run.layout.zero, "schedule": run.layout.schedule},
            "published": run.published.source,
        }


def _preset_cells(row: Row) -> list[str]:
    short = {"virtual_stages": "vpp", "dp_replicate": "dp", "dp_shard": "dp"}
    axes = [f"{short.get(axis, axis)} {row['layout'][axis]}" for axis in AXES if axis in row["layout"]]
    batch = f"{row['global_sequences']:,} x {row['sequence_length']:,}"
    return [row["name"], row["cluster"], row["software"] or "-", batch, " ".join(axes)]


def _schedules() -> Iterable[Row]:
    from fourfold.program.schedule import SCHEDULES

    for each in SCHEDULES:
        bubble = each.bubble(BUBBLE_RANKS, each.min_virtual_stages, BUBBLE_MICROBATCHES)
        yield {
            "name": each.name,
            "min_virtual_stages": each.min_virtual_stages,
            "max_virtual_stages": each.max_virtual_stages,
            "splits_backward": each.splits_backward,
            "bubble_fraction": None if bubble is None else float(bubble),
            "microbatches_in_flight": each.in_flight(BUBBLE_RANKS, each.min_virtual_stages, BUBBLE_MICROBATCHES),
            "summary": each.summary,
            "paper": each.paper,
            "names": dict(each.names),
        }


def _schedule_cells(row: Row) -> list[str]:
    least, most = row["min_virtual_stages"], row["max_virtual_stages"]
    stages = str(least) if most == least else f"{least}+" if most is None else f"{least}-{most}"
    bubble = "-" if row["bubble_fraction"] is None else f"{row['bubble_fraction']:.1%}"
    return [row["name"], stages, bubble, f"{row['microbatches_in_flight']:g}", row["paper"]]


_LISTINGS: Mapping[Kind, Listing] = {
    "models": Listing(
        _models,
        _model_cells,
        ("model", "parameters", "active", "experts", "layers", "hidden", "vocabulary", "context"),
        (0,),
        (
            f"Parameters of a model that states no vocabulary: with {USUAL_VOCABULARY:,} tokens.",
            "fourfold plan --model llama3-8b --cluster dgx-h100:64 --sequence-length 8192 --batch-tokens 4M",
        ),
    ),
    "clusters": Listing(
        _clusters,
        _cluster_cells,
        ("cluster", "device", "devices", "a node", "$/h", "links, GB/s"),
        (0, 1, 5),
        (
            "Links in one direction, innermost first: of a device; of a torus or a shared medium, of the link. +: grows.",
            "--cluster dgx-h100:64 is 64 devices of it. fourfold cluster new writes a file of your own.",
        ),
    ),
    "devices": Listing(
        _devices,
        _device_cells,
        ("device", "GiB", "GB/s", "fp4", "fp8", "bf16", "fp32", "W", ""),
        (0, 8),
        (
            "Memory and its rate; dense peaks of matmuls in TFLOP/s; the maker's power limit.",
            "fourfold cluster new --nodes 4 --device a100-sxm-40:8 --network 2x100GbE",
        ),
    ),
    "software": Listing(
        _software,
        _software_cells,
        ("software", "fused", "GEMM", "links", "years", "facts"),
        (0, 4, 5),
        (
            "Fused: how far memory-bound kernels are. GEMM, links: speed beside the device's and the links'. Facts: where it",
            "departs from the default; --json has all constants. A year may be added: --software megatron-2024.",
        ),
    ),
    "presets": Listing(
        _presets,
        _preset_cells,
        ("run", "cluster", "software", "sequences", "layout"),
        (0, 1, 2, 4),
        (
            "Sequences of a step x tokens of each. ZeRO, schedule and source: --json.",
            "fourfold simulate preset:llama3-70b predicts a step, and prints the published figure beside it.",
        ),
    ),
    "schedules": Listing(
        _schedules,
        _schedule_cells,
        ("schedule", "stages a rank", "bubble", "in flight", "paper"),
        (0, 4),
        (
            f"Bubble, and the most microbatches in flight, of {BUBBLE_RANKS} ranks, {BUBBLE_MICROBATCHES} microbatches and the "
            "fewest stages a rank, where a backward takes 2 forwards.",
            "fourfold show preset:llama3-70b layout.schedule=interleaved_1f1b --timeline draws one.",
        ),
    ),
}
