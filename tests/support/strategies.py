"""Hypothesis strategies: any spec that can be lowered."""

from dataclasses import replace
from math import gcd
from typing import Any

from hypothesis import strategies as st

from fourfold.layout.mesh import ORDERS
from fourfold.program import StepSpec
from tests.support.programs import make_spec
from tests.support.schedules import NAMES, stages_of

DEGREES = {
    "pp": [1, 2, 3, 4],
    "dp_replicate": [1, 1, 2, 3],
    "dp_shard": [1, 2, 3, 4],
    "cp": [1, 1, 2, 4],
    "tp": [1, 1, 2, 4],
}
SHAPES = ("dense", "dense", "mixtral", "qwen3_moe", "deepseek")
PRECISIONS = (
    {"compute": "fp32"},
    {"compute": "fp64"},
    {"compute": "bf16"},
    {"compute": "bf16", "gradients": "bf16"},
    {"compute": "fp32", "master": "fp64"},
    {"compute": "fp32", "master": "fp64", "gradients": "fp64"},
)


@st.composite
def lowerings(
    draw: st.DrawFn, max_ranks: int = 96, pipelines: bool = True, shapes: tuple[str, ...] = SHAPES, tensor: bool = True
) -> StepSpec:
    """Any model, mesh, schedule, ZeRO stage, precision, recompute policy and transport, all small; at most `max_ranks` ranks.
    `pipelines`, `tensor`: whether there may be several stages, and tensor, context and expert parallelism."""
    left_out = {*([] if pipelines else ["pp"]), *([] if tensor else ["tp", "cp"])}
    mesh = _mesh(draw, max_ranks, left_out)
    schedule, virtual = draw(_schedules(mesh["pp"])) if pipelines else ("1f1b", 1)
    shape = draw(st.sampled_from(shapes))
    context = _context(draw, mesh["cp"])
    model = _model(draw, shape, mesh, context[1], mesh["pp"] * virtual)
    experts = _experts(draw, model, mesh) if shape != "dense" and tensor else {}
    parts = 2 * mesh["cp"] * mesh["tp"]
    return make_spec(
        model,
        accumulation=draw(st.integers(1, 6)),
        sequence_length=parts * draw(st.integers(1, 3)) if parts > 2 else draw(st.integers(1, 30)),
        precision=draw(st.sampled_from(PRECISIONS)),
        document_mask=draw(st.booleans()),
        transport=draw(st.sampled_from(["exchange", "native"])),
        **mesh,
        **experts,
        cp_method=context[0],
        sequence_parallel=mesh["tp"] > 1 and draw(st.booleans()),
        outermost=draw(st.sampled_from(sorted(ORDERS))),
        schedule=schedule,
        virtual_stages=virtual,
        segments_per_stage=draw(st.none() | _division(model["num_layers"] + 2, mesh["pp"] * virtual)),
        zero=draw(st.integers(0, 3)),
        microbatch_sequences=draw(st.integers(1, 3)),
        recompute=draw(_policies(model["num_layers"])),
        prefetch=draw(st.integers(0, 4)),
        offload=draw(st.sampled_from(["none", "none", "activations", "activations:1"])),
        offload_optimizer=draw(st.booleans()),
    )


@st.composite
def overlapping(draw: st.DrawFn, max_ranks: int = 24) -> StepSpec:
    """A mixture of experts over several ranks, with `overlap_experts`."""
    spec = draw(lowerings(max_ranks, shapes=SHAPES[2:]).filter(lambda each: each.layout.ep > 1))
    return replace(spec, layout=replace(spec.layout, overlap_experts=True))


def _mesh(draw: st.DrawFn, max_ranks: int, left_out: set[str]) -> dict[str, int]:
    """Degrees whose product is at most `max_ranks`; which axis is cut short is a matter of chance."""
    mesh, room = dict.fromkeys(DEGREES, 1), max_ranks
    for axis in draw(st.permutations(sorted(set(DEGREES) - left_out))):
        mesh[axis] = draw(st.sampled_from([d for d in DEGREES[axis] if d <= room]))
        room //= mesh[axis]
    return mesh


@st.composite
def _schedules(draw: st.DrawFn, pp: int) -> tuple[str, int]:
    """A schedule and the stages a rank that it can have. `auto` searches, and is drawn for short pipelines alone."""
    schedule = draw(st.sampled_from([s for s in NAMES if s != "auto" or pp <= 2]))
    return schedule, draw(st.sampled_from(stages_of(schedule, 2 if schedule == "auto" else 3)))


def _context(draw: st.DrawFn, cp: int) -> tuple[str, int]:
    """`cp_method` and its ulysses degree."""
    mixed = [(f"ring+ulysses:{u}", u) for u in range(1, cp + 1) if cp % u == 0]
    return draw(st.sampled_from([("ring", 1), ("all_gather", 1), ("ulysses", cp), *mixed]))


def _model(draw: st.DrawFn, shape: str, mesh: dict[str, int], ulysses: int, stages: int) -> dict[str, Any]:
    tp = mesh["tp"]
    layers = draw(st.integers(max(1, stages - 2), max(4, stages)))
    heads = tp * ulysses * draw(st.integers(1, 2))
    kv_heads = [d for d in range(1, heads + 1) if heads % d == 0 and (d % tp == 0 or tp % d == 0)]
    model: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": draw(st.integers(3, 40)),
        "num_heads": heads,
        "num_kv_heads": draw(st.sampled_from(kv_heads)),
        "head_dim": draw(st.sampled_from([2, 6, 8])),
        "ffn_size": tp * draw(st.integers(1, 20)),
        "vocab_size": tp * draw(st.integers(2, 60)),
        "tie_embeddings": draw(st.booleans()),
    }
    if shape == "dense":
        return model | draw(
            st.sampled_from([{}, {"qk_norm": True}, {"qkv_bias": True}, {"positions": "learned", "norm": "layer"}])
        )
    return model | _routed(draw, shape, tp, layers)


def _routed(draw: st.DrawFn, shape: str, tp: int, layers: int) -> dict[str, Any]:
    experts = draw(st.sampled_from([4, 6, 8]))
    ffn = 4 * tp * draw(st.integers(1, 4))
    routed = {"num_experts": experts, "top_k": draw(st.integers(1, 2)), "moe_ffn_size": ffn}
    if shape == "mixtral":
        return routed
    losses = {"balance_loss": 0.01, "z_loss": draw(st.sampled_from([0.0, 0.001]))}
    if shape == "qwen3_moe":
        return {
            **routed,
            **losses,
            "qk_norm": True,
            "first_dense_layers": draw(st.integers(0, 1)),
            "moe_period": draw(st.integers(1, min(2, layers))),
        }
    return {
        **{**routed, **losses, "num_kv_heads": None, "head_dim": None},
        **{"router": "sigmoid", "balance_bias_speed": 0.001, "num_expert_groups": 2, "top_groups": 1},
        **{"num_shared_experts": draw(st.integers(0, 2)), "first_dense_layers": draw(st.integers(0, layers))},
        **{"query_rank": draw(st.sampled_from([0, 6])), "key_value_rank": 10, "rope_head_dim": 4},
        **{"nope_head_dim": draw(st.sampled_from([2, 6])), "value_head_dim": draw(st.sampled_from([4, 8]))},
    }


def _experts(draw: st.DrawFn, model: dict[str, Any], mesh: dict[str, int]) -> dict[str, int]:
    """Degrees `ep` and `etp` that divide the ranks which experts are spread over, and the experts."""
    ranks = mesh["dp_shard"] * mesh["cp"] * mesh["tp"]
    shared = gcd(ranks, model["num_experts"])
    ep = draw(st.sampled_from([d for d in range(1, shared + 1) if shared % d == 0]))
    shared = gcd(ranks // ep, model["moe_ffn_size"])
    return {"ep": ep, "etp": draw(st.sampled_from([d for d in range(1, min(shared, 4) + 1) if shared % d == 0]))}


@st.composite
def _division(draw: st.DrawFn, segments: int, stages: int) -> list[int]:
    """Divides this many segments among this many stages, however uneven, at least one each."""
    cuts = sorted(draw(st.sets(st.integers(1, segments - 1), min_size=stages - 1, max_size=stages - 1)))
    return [end - start for start, end in zip([0, *cuts], [*cuts, segments], strict=True)]


def _policies(num_layers: int) -> st.SearchStrategy[str | list[str]]:
    policy = st.sampled_from(["none", "selective", "full"])
    return st.one_of(
        policy,
        st.integers(0, num_layers).map(lambda n: f"full:{n}"),
        st.integers(0, num_layers).map(lambda n: f"selective:{n}"),
        st.lists(policy, min_size=num_layers, max_size=num_layers),
    )
