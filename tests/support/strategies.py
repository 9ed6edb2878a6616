"""Hypothesis strategies: any facts that can be lowered."""

from hypothesis import strategies as st

from fourfold.program import Lowering
from tests.support.programs import make_facts


@st.composite
def lowerings(draw: st.DrawFn) -> Lowering:
    """Any model, layout, precision, recompute policy and transport, all small."""
    num_layers = draw(st.integers(1, 4))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.integers(1, 3))
    head_dim = draw(st.sampled_from([2, 6, 8]))
    model = {
        "num_layers": num_layers,
        "hidden_size": draw(st.integers(3, 40)),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_size": draw(st.integers(1, 50)),
        "vocab_size": draw(st.integers(2, 200)),
        "tie_embeddings": draw(st.booleans()),
        **draw(st.sampled_from([{}, {"qk_norm": True}, {"qkv_bias": True}])),
    }
    policy = st.sampled_from(["none", "selective", "full"])
    recompute = draw(
        st.one_of(
            policy,
            st.integers(0, num_layers).map(lambda n: f"full:{n}"),
            st.integers(0, num_layers).map(lambda n: f"selective:{n}"),
            st.lists(policy, min_size=num_layers, max_size=num_layers),
        )
    )
    precision = draw(
        st.sampled_from(
            [
                {"compute": "fp32"},
                {"compute": "fp64"},
                {"compute": "bf16"},
                {"compute": "bf16", "gradients": "bf16"},
                {"compute": "fp32", "master": "fp64"},
                {"compute": "fp32", "master": "fp64", "gradients": "fp64"},
            ]
        )
    )
    return make_facts(
        model,
        accumulation=draw(st.integers(1, 4)),
        sequence_length=draw(st.integers(1, 30)),
        precision=precision,
        document_mask=draw(st.booleans()),
        transport=draw(st.sampled_from(["exchange", "native"])),
        dp_replicate=draw(st.sampled_from([1, 1, 2, 3])),
        dp_shard=draw(st.sampled_from([1, 2, 3, 4, 6, 8])),
        zero=draw(st.integers(0, 3)),
        microbatch_sequences=draw(st.integers(1, 3)),
        recompute=recompute,
        prefetch=draw(st.integers(0, 4)),
    )
