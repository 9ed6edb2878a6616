"""One case in full: what was asked, what was filled in, where its predicted seconds go, what fills its memory."""

from dataclasses import asdict
from typing import Any

from as_case import as_case
from case import PublishedCase
from fourfold.cost.fitted import Fitted, fitted
from fourfold.simulate.prediction import predict_step
from fourfold.validate import case_prices, case_spec
from settle import NETWORKS, network_step_seconds, settle


def explain_case(case: PublishedCase, constants: Fitted | None = None) -> dict[str, Any]:
    """Plain tables, lists, numbers and texts. `seconds`: of the step, by kind, the mean over pipeline ranks; they sum to the step.
    `memory`: of the pipeline rank that holds most. Raises `UserError` where the layout cannot be."""
    constants = constants or fitted()
    case, prediction = settle(case, constants)
    run = as_case(case)
    spec = case_spec(run)
    prices = case_prices(run, spec, constants)
    step = predict_step(spec, prices)
    simulation = step.simulation
    total: dict[str, float] = {}
    for spent in simulation.spent:
        for kind, seconds in spent.items():
            total[kind] = total.get(kind, 0.0) + seconds
    scale = step.seconds / (sum(total.values()) or 1.0)
    rank = max(range(len(step.device_bytes)), key=lambda index: step.device_bytes[index])
    if case.measured.last_rank_alone:
        rank = len(step.device_bytes) - 1
    peak = simulation.peaks[rank]
    held: dict[str, float] = dict(peak.by_kind())
    if prediction.memory_bytes is not None:
        held["beyond the program's buffers"] = prediction.memory_bytes - peak.bytes
    offloaded = (prediction.step_seconds or step.seconds) - step.seconds
    return {
        "id": case.id,
        "source": case.source,
        "model": _stated(asdict(case.model)),
        "layout": asdict(case.layout),
        "batch": {"sequence_length": case.sequence_length, "global_sequences": case.global_sequences},
        "precision": asdict(case.precision),
        "machine": {"device": case.device, "devices": case.num_devices, **asdict(case.network)},
        "software": _stated(asdict(prices.software)),
        "filled": list(case.defaults),
        "measured": _stated(asdict(case.measured)),
        "predicted": {
            "step_seconds": step.seconds + offloaded,
            "memory_bytes": prediction.memory_bytes,
            "fits": prediction.fits,
            "network_step_seconds": network_step_seconds(case, constants),
        },
        "seconds": {
            **{k: v * scale for k, v in sorted(total.items(), key=lambda item: -item[1])},
            **({"optimizer in the host's memory": offloaded} if offloaded > 0 else {}),
        },
        "memory": {"pp_rank": rank, "at": simulation.programs[rank].instructions[peak.index].short, "bytes": held},
    }


def _stated(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def explanation_lines(document: dict[str, Any]) -> list[str]:
    """An explanation for a terminal."""
    lines = [f"{document['id']}: {document['source']}"]
    for key in ("model", "layout", "batch", "precision", "machine", "software", "measured"):
        lines += [key, *(f"  {name} = {value}" for name, value in document[key].items())]
    lines += ["filled in", *(f"  {text}" for text in document["filled"])]
    predicted = document["predicted"]
    lines.append(f"predicted {predicted['step_seconds']:.4g} s, of which")
    lines += [
        f"  {seconds:10.4g} s  {100 * seconds / predicted['step_seconds']:5.1f} %  {kind}"
        for kind, seconds in document["seconds"].items()
    ]
    if predicted["network_step_seconds"]:
        ends = zip(NETWORKS, predicted["network_step_seconds"], strict=True)
        at = ", ".join(f"{seconds:.4g} s with {rate / 1e9:.0f} GB/s a device" for rate, seconds in ends)
        lines.append(f"the network is not stated: {at}")
    memory = document["memory"]
    if predicted["memory_bytes"] is None:
        return [*lines, "memory is not predicted: part of it lies in the host's memory"]
    lines.append(
        f"predicted {predicted['memory_bytes'] / 1e9:.4g} GB on pipeline rank {memory['pp_rank']}, most at `{memory['at']}`: "
        + ("fits" if predicted["fits"] else "does not fit")
    )
    return [*lines, *(f"  {size / 1e9:10.3f} GB  {kind}" for kind, size in memory["bytes"].items())]
