"""`fourfold train --rehearse`: a step of every class of ranks, and a training in small, on devices that are not there."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fourfold.api.training import check_request
from fourfold.config import load_run
from fourfold.hardware import THIS, load_cluster
from fourfold.launch.host_memory import host_need
from fourfold.launch.resolve import resolve_run, stated_vocab_size
from fourfold.model.torch_attention import default_backend
from fourfold.model.torch_operations import torch_dtype
from fourfold.rehearse.run import rehearse, rehearse_graphs
from fourfold.rehearse.training import NoSmallRun, rehearse_training, require_host_memory
from fourfold.report.display import preparing
from fourfold.report.format_rehearsal import host_memory_line, rehearsal_lines, training_lines
from fourfold.report.format_run import layout_line, model_line, transport_lines
from fourfold.runtime.graph import check_graphs
from fourfold.supervise.signals import stopped_by_signals


def rehearsal(run: Path, overrides: Sequence[str], ranks: int | None) -> Iterator[list[str]]:
    """Screens of text, each as soon as it is known: the steps, then the training. Raises `UserError`; `RunFailure` where a device
    would reject it."""
    config = load_run(run, overrides)
    check_request(config, ranks)
    resolved = resolve_run(config, ranks, stated_vocab_size(config.model, config.data), "native")
    if config.run.cuda_graphs:
        device = torch.device("cuda")
        attention = default_backend(device, torch_dtype(resolved.spec.compute))
        check_graphs(config, resolved.spec, device, attention.name)
        rehearse_graphs(resolved.spec, config.optimizer)
    results = rehearse(resolved.spec, config.optimizer)
    need, cluster = host_need(resolved, pins=True), config.cluster.preset
    machine = None if cluster == THIS else load_cluster(cluster)
    lines = [model_line(resolved), layout_line(resolved), *transport_lines(resolved, "a rehearsal"), ""]
    lines += rehearsal_lines(results, resolved.layout.world_size, config.run.cuda_graphs)
    yield [*lines, host_memory_line(need, machine), ""]
    require_host_memory(need, machine)
    try:
        with stopped_by_signals(), preparing("training in small on devices that are not there"):
            trained = rehearse_training(resolved)
    except NoSmallRun as error:
        yield [f"not rehearsed: a training in small, which this run has not: {error}"]
    else:
        yield training_lines(trained)
