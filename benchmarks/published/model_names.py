"""Names that rows give the sizes of their models: our key, and its other names."""

from fields import Fields
from row import StatedModel

_MODEL_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_layers", "num_hidden_layers", "n_layers"),
    "hidden": ("hidden_size", "d_model"),
    "heads": ("num_heads", "num_attention_heads", "n_heads"),
    "kv_heads": ("num_kv_heads", "num_key_value_heads", "n_kv_heads"),
    "ffn": ("ffn_size", "intermediate_size", "ffn_hidden_size", "d_ff"),
    "vocab": ("vocab_size",),
    "tied": ("tie_embeddings", "tie_word_embeddings"),
    "act": ("activation",),
    "experts": ("n_experts", "num_experts", "n_routed_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "topk", "moe_top_k"),
    "moe_ffn": ("moe_ffn_size", "moe_intermediate_size", "expert_ffn", "expert_hidden"),
    "shared_ffn": ("shared_expert_intermediate_size", "shared_expert_ffn"),
    "dense_layers": ("first_dense", "first_dense_layers", "first_k_dense_replace", "first_k_dense", "num_dense_layers"),
    "moe_period": ("moe_every", "moe_layer_freq", "interleave_moe_layer_step", "decoder_sparse_step"),
    "q_lora": ("q_lora_rank",),
    "kv_lora": ("kv_lora_rank",),
    "qk_nope": ("qk_nope_head_dim", "nope_head_dim"),
    "qk_rope": ("qk_rope_head_dim", "rope_head_dim"),
    "v_head": ("v_head_dim", "value_head_dim"),
    "mtp_layers": ("num_nextn_predict_layers", "mtp"),
    "window": ("sliding_window", "attention_window", "window_size"),
}
"""Keys of a row's model, and what else they are called."""


def stated_model(row: Fields) -> StatedModel:
    """The model as a row states it."""
    model = _with_window(row)
    full, mtp = model.table.get("full_attention_layers"), model.table.get("mtp")
    model = model.named(
        {key: names for key, names in _MODEL_NAMES.items() if key != "mtp_layers" or not isinstance(mtp, bool)}
    )
    return StatedModel(
        name=model.text("name") or "",
        num_layers=model.count("layers", high=100_000),
        hidden_size=model.count("hidden"),
        num_heads=model.count("heads"),
        num_kv_heads=model.count("kv_heads"),
        head_dim=model.count("head_dim"),
        ffn_size=model.count("ffn"),
        vocab_size=model.count("vocab"),
        gated=model.flag("glu"),
        tied=model.flag("tied"),
        activation=model.text("act"),
        is_mla=(model.text("attention") or "").upper() == "MLA" or model.has("kv_lora"),
        query_rank=model.count("q_lora", low=0),
        key_value_rank=model.count("kv_lora", low=0),
        nope_head_dim=model.count("qk_nope", low=0),
        rope_head_dim=model.count("qk_rope", low=0),
        value_head_dim=model.count("v_head", low=0),
        num_experts=model.count("experts", low=0),
        top_k=model.count("top_k", low=0),
        moe_ffn_size=model.count("moe_ffn", low=0),
        shared_ffn_size=model.count("shared_ffn", low=0),
        dense_layers=model.count("dense_layers", low=0),
        moe_period=None if isinstance(model.table.get("moe_period"), list) else model.count("moe_period", high=1000),
        window=model.count("window"),
        full_layers=len(full) if isinstance(full, list) else model.count("full_attention_layers", low=0),
        mtp_layers=model.count("mtp_layers", low=0, high=100),
        hybrid=model.has("mamba_layers") or model.has("attn_layers"),
    )


def _with_window(row: Fields) -> Fields:
    """The row's model, with the windows of its attention where they stand beside it."""
    model = row.inner("model")
    return Fields({"window": row.table.get("attention_window"), **model.table}, model.where, model.path, model.remarks)
