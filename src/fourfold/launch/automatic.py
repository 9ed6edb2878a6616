"""`layout = "auto"`: the layout of a run is the planner's best for its cluster."""

from dataclasses import replace

from fourfold.config import ModelConfig, RunConfig, UserError
from fourfold.config.layout_section import LayoutSection
from fourfold.hardware import THIS, Cluster, cluster_names, load_cluster, named_with
from fourfold.plan.constraints import KEPT, KEYS
from fourfold.plan.request import Request
from fourfold.plan.search import search

BUDGET = 30.0


def automatic_layout(config: RunConfig, model: ModelConfig, ranks: int | None) -> LayoutSection:
    """The fastest layout that fits, of those with the keys that `[layout]` states beside `auto`. `ranks`: None for all devices of
    the cluster. Raises `UserError` where the cluster is not known or nothing fits."""
    request = Request.of(
        model,
        _cluster(config.cluster.preset, ranks),
        config.batch.sequence_length,
        config.batch.global_sequences,
        config.precision,
        document_mask=config.data.document_mask,
        document_tokens=config.data.document_tokens,
        layout=config.layout,
        optimizer=config.optimizer,
        cuda_graphs=config.run.cuda_graphs,
    )
    request = replace(request, sequence_parallel=config.layout.sequence_parallel is not False)
    stated = config.layout.model_fields_set - {"auto", "sequence_parallel", *KEPT}
    unknown = stated - set(KEYS)
    if unknown:
        key = sorted(unknown)[0]
        raise UserError(
            f"layout.{key} beside layout.auto: the search does not choose it; allowed beside it: {', '.join(KEYS)}"
        )
    found = search(request, BUDGET, keep=1, fixed={key: getattr(config.layout, key) for key in stated})
    if not found.best:
        held = f": the least that a device would hold is {found.smallest[1] / 1e9:.3g} GB" if found.smallest else ""
        raise UserError(
            f'layout = "auto": nothing fits {request.devices} devices of {request.memory_bytes / 1e9:.3g} GB with this '
            f"batch{held}; what works: more --ranks, or batch.global_sequences a multiple of them (fourfold plan says more)"
        )
    return request.section(found.best[0].candidate)


def _cluster(name: str, ranks: int | None) -> Cluster:
    if name == THIS:
        raise UserError(
            'layout = "auto" needs to know the machine: run `fourfold calibrate --out this-machine.toml` and set '
            f'cluster.preset = "this-machine.toml"; or name one of {", ".join(cluster_names())}'
        )
    return load_cluster(name if ranks is None else named_with(name, ranks))
