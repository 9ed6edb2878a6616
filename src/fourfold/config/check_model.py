"""Checks of a model's dimensions against each other; each refusal names the key, its value, and one that works."""

from collections.abc import Callable
from dataclasses import replace

from fourfold.config.errors import UserError
from fourfold.config.model_config import LAYER_KEYS, MOST_LAYERS, ModelConfig, differences


def check_model(model: ModelConfig) -> None:
    """Raises one `UserError` for the first inconsistency."""
    if (message := _exceptions(model)) is not None:
        raise UserError(message)
    common = replace(model, exceptions=())
    for each in (common, *model.layer_configs):
        for check in _CHECKS:
            if (message := check(each)) is not None:
                raise UserError(message if each == common else f"model.exceptions: in some layers {message}")


def _layers(model: ModelConfig) -> str | None:
    if not 0 < model.num_layers <= MOST_LAYERS:
        return (
            f"model.num_layers = {model.num_layers}: allowed: 1 to {MOST_LAYERS}; a value that works: num_layers = 32"
        )
    return None


def _heads(model: ModelConfig) -> str | None:
    if model.is_mla:
        return None
    if model.num_heads % model.num_kv_heads:
        fit = max(d for d in range(1, min(model.num_kv_heads, 100_000) + 1) if model.num_heads % d == 0)
        return (
            f"model.num_kv_heads = {model.num_kv_heads} does not divide model.num_heads = {model.num_heads}; "
            f"a value that works: num_kv_heads = {fit}"
        )
    if model.positions == "rope" and model.rotary_fraction == 1 and model.head_dim % 2:
        return (
            f"model.head_dim = {model.head_dim} is odd; rotary embedding needs an even one, for example "
            f"{model.head_dim + 1}"
        )
    return None


def _delta_rule(model: ModelConfig) -> str | None:
    if model.mixer not in ("gated_delta", "kimi_delta"):
        return None
    example_model = "Qwen3-Next" if model.mixer == "gated_delta" else "Kimi-Linear"
    for key, example in (
        ("delta_value_heads", 32),
        ("delta_key_heads", 16 if model.mixer == "gated_delta" else 32),
        ("delta_key_dim", 128),
        ("delta_value_dim", 128),
    ):
        if not getattr(model, key):
            return (
                f'model.{key} is missing: model.mixer = "{model.mixer}" needs it; for example {key} = {example}, as in '
                f"{example_model}"
            )
    for ours, other in (("delta_key_heads", "delta_value_heads"), ("delta_key_dim", "delta_value_dim")):
        if model.mixer == "kimi_delta" and getattr(model, ours) != getattr(model, other):
            return (
                f"model.{ours} = {getattr(model, ours)} is not model.{other} = {getattr(model, other)}, as model.mixer = "
                f'"kimi_delta" has it; a value that works: {ours} = {getattr(model, other)}'
            )
    if model.delta_value_heads % model.delta_key_heads:
        return (
            f"model.delta_key_heads = {model.delta_key_heads} does not divide model.delta_value_heads = "
            f"{model.delta_value_heads}; a value that works: delta_key_heads = {model.delta_value_heads}"
        )
    return None


def _exceptions(model: ModelConfig) -> str | None:
    layers = model.num_layers
    for exception in model.exceptions if layers <= MOST_LAYERS else ():
        stated = {"layers": exception.layers, "every": exception.every}
        words = ", ".join(f"{key} = {_listed(value)}" for key, value in stated.items() if value is not None)
        where = f"model.exceptions: {{{words or '...'}}}"
        if (exception.layers is None) == (exception.every is None):
            return f"{where}: allowed: either layers or every; a value that works: {{layers = [0], sliding_window = 0}}"
        if not differences(exception):
            return (
                f"{where} states nothing that these layers have of their own; allowed: {', '.join(LAYER_KEYS)}; a value that "
                "works: sliding_window = 0"
            )
        if exception.layers is not None and (not exception.layers or max(exception.layers) >= layers):
            return f"{where}: allowed: layers from 0 to {layers - 1}; a value that works: layers = [0]"
        if exception.every is not None and exception.every > layers:
            return f"{where}: there are {layers} layers; allowed: 2 to {layers}; a value that works: layers = [0]"
        if exception.positions == "learned":
            return f'{where}: positions = "learned" is a matter of the whole model; allowed: "rope", "none"'
    return None


def _listed(value: int | tuple[int, ...]) -> str:
    return str(value) if isinstance(value, int) else str([*value[:8]])[:-1] + (", ...]" if len(value) > 8 else "]")


def _attention_spans(model: ModelConfig) -> str | None:
    if model.sliding_window and model.attention_chunk:
        return (
            f"model.sliding_window = {model.sliding_window} and model.attention_chunk = {model.attention_chunk} are both stated; a "
            "value that works: attention_chunk = 0"
        )
    return None


def _rotary_scaling(model: ModelConfig) -> str | None:
    scaling, yarn, long = model.rope_scaling, model.yarn_scaling, model.longrope_scaling
    stated = [key for key in ("rope_scaling", "yarn_scaling", "longrope_scaling") if getattr(model, key) is not None]
    stated += [key for key in ("linear_scaling", "dynamic_scaling") if getattr(model, key) != 1]
    if len(stated) > 1:
        return f"model.{stated[0]} and model.{stated[1]} are both stated; keep one of them"
    if model.positions == "learned" and stated:
        return f'model.{stated[0]} needs rotary positions; leave it out, or state positions = "rope"'
    pairs = model.rotated_width // 2
    for key in ("short_factor", "long_factor") if long is not None else ():
        if len(getattr(long, key)) != pairs:
            return (
                f"model.longrope_scaling: {key} has {len(getattr(long, key))} factors, and {2 * pairs} elements of a head are "
                f"rotated; allowed: {pairs} factors"
            )
    if scaling is not None and scaling.low_freq_factor > scaling.high_freq_factor:
        return (
            f"model.rope_scaling: low_freq_factor = {scaling.low_freq_factor} is above high_freq_factor = "
            f"{scaling.high_freq_factor}; values that work: low_freq_factor = 1.0, high_freq_factor = 4.0"
        )
    if yarn is not None and yarn.beta_slow > yarn.beta_fast:
        return (
            f"model.yarn_scaling: beta_slow = {yarn.beta_slow} is above beta_fast = {yarn.beta_fast}; values that work: "
            f"beta_slow = 1.0, beta_fast = 32.0"
        )
    return None


_NOT_FOR_MLA: dict[str, tuple[object, ...]] = {
    "qk_norm": (False,),
    "query_temperature": (None,),
    "qkv_bias": (False,),
    "attention_output_bias": (None, False),
    "attention_sinks": (False,),
    "attention_output_gate": (False,),
    "attention_scale": (None,),
    "attention_softcap": (None,),
    "rotary_fraction": (1.0,),
    "zero_centered_norm": (False,),
    "norm": ("rms",),
    "linear_bias": (False,),
}


def _norms_and_biases(model: ModelConfig) -> str | None:
    for key, allowed in _NOT_FOR_MLA.items() if model.is_mla else ():
        if (value := getattr(model, key)) not in allowed:
            usual = "leave it out" if allowed[-1] is None else f"allowed: {key} = {_toml(allowed[-1])}"
            return f"model.{key} = {_toml(value)} is not known for MLA (model.key_value_rank); {usual}"
    if model.zero_centered_norm and model.norm == "layer":
        return 'model.zero_centered_norm = true is not known for model.norm = "layer"; a value that works: norm = "rms"'
    if model.qk_norm_over == "all" and not model.qk_norm_weight:
        return (
            'model.qk_norm_weight = false is not known for model.qk_norm_over = "all"; allowed: qk_norm_over = "head"'
        )
    if model.qk_norm_over == "all" and not model.qk_norm:
        return 'model.qk_norm_over = "all" needs model.qk_norm = true; leave it out, or state qk_norm = true'
    return None


def _toml(value: object) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else '"' + value + '"' if isinstance(value, str) else str(value)
    )


def _rotation(model: ModelConfig) -> str | None:
    if model.is_mla or model.positions != "rope":
        return None
    width = model.rotated_width
    if width < 2 or width % 2 or width > model.head_dim:
        fit = 1.0 if width > model.head_dim else max(2, width // 2 * 2) / model.head_dim
        return (
            f"model.rotary_fraction = {model.rotary_fraction} rotates {width} of model.head_dim = {model.head_dim} elements, and "
            f"pairs are rotated; a value that works: {fit:g}"
        )
    return None


def _feed_forward(model: ModelConfig) -> str | None:
    if model.num_experts and model.activation not in ("silu", "clamped_swiglu"):
        return f"model.activation = {model.activation!r} is not known for experts; a value that works: silu"
    if model.expert_bias and model.expert_scaling == "input":
        return 'model.expert_bias = true is not known for model.expert_scaling = "input"; allowed: expert_scaling = "output"'
    if model.activation == "clamped_swiglu" and not model.gated:
        return "model.gated = false: model.activation = 'clamped_swiglu' is of a gate; a value that works: gated = true"
    for key, usual in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if model.activation != "clamped_swiglu" and getattr(model, key) != usual:
            return (
                f"model.{key} = {getattr(model, key)} needs model.activation = 'clamped_swiglu'; leave it out, or state "
                'activation = "clamped_swiglu"'
            )
    if model.gated and model.linear_bias:
        return "model.linear_bias = true: a gated feed-forward has no biases here; a value that works: gated = false"
    if model.norm == "layer" and model.num_experts:
        return 'model.norm = "layer" is not known for experts; allowed: norm = "rms"'
    return None


def _multi_token(model: ModelConfig) -> str | None:
    for key, allowed in (
        ("norm", "rms"),
        ("positions", "rope"),
        ("norm_placement", "pre"),
        ("zero_centered_norm", False),
        ("mixer", "attention"),
        ("scaled_embedding", False),
        ("logit_softcap", None),
    ):
        if model.mtp_layers and getattr(model, key) != allowed:
            return (
                f"model.mtp_layers = {model.mtp_layers}: MTP modules are known for model.{key} = "
                f"{allowed!r} alone; a value that works: mtp_layers = 0"
            )
    return None


def _mla(model: ModelConfig) -> str | None:
    if not model.is_mla:
        return None
    for key, example in (("rope_head_dim", 64), ("nope_head_dim", 128), ("value_head_dim", 128)):
        if not getattr(model, key):
            return f"model.{key} is missing: MLA needs it; for example {key} = {example}, as in DeepSeek-V3"
    if model.positions == "rope" and model.rope_head_dim % 2:
        return (
            f"model.rope_head_dim = {model.rope_head_dim} is odd; rotary embedding needs an even one, for example "
            f"{model.rope_head_dim + 1}"
        )
    width = model.nope_head_dim + model.rope_head_dim
    if model.head_dim != width:
        return (
            f"model.head_dim = {model.head_dim} is not nope_head_dim + rope_head_dim = {width}, as MLA has it; "
            f"leave it out, or state {width}"
        )
    if model.num_kv_heads != model.num_heads:
        return (
            f"model.num_kv_heads = {model.num_kv_heads}: MLA has a key and a value for each of its "
            f"{model.num_heads} heads; leave it out, or state {model.num_heads}"
        )
    if model.positions == "learned":
        return 'model.positions = "learned" is not known for MLA; allowed: "rope", "none"'
    return None


def _experts(model: ModelConfig) -> str | None:
    if not model.num_experts:
        return None
    if not model.gated or model.linear_bias:
        key, value = ("gated", "true") if not model.gated else ("linear_bias", "false")
        return f"model.{key}: experts are gated and without biases; a value that works: {key} = {value}"
    for key, example in (("top_k", min(2, model.num_experts)), ("moe_ffn_size", model.ffn_size)):
        if not getattr(model, key):
            return f"model.{key} is missing: a mixture of experts needs it; for example {key} = {example}"
    if model.shared_expert_gate and not model.num_shared_experts:
        return (
            "model.shared_expert_gate = true: there are no shared experts; a value that works: num_shared_experts = 1"
        )
    if model.top_k > model.num_experts:
        return (
            f"model.top_k = {model.top_k} exceeds model.num_experts = {model.num_experts}; allowed: at most "
            f"{model.num_experts}, for example {min(2, model.num_experts)}"
        )
    if model.first_dense_layers > model.num_layers:
        return (
            f"model.first_dense_layers = {model.first_dense_layers} exceeds model.num_layers = {model.num_layers}; "
            f"allowed: at most {model.num_layers}, for example {min(1, model.num_layers - 1)}"
        )
    if model.moe_period > model.num_layers:
        return (
            f"model.moe_period = {model.moe_period} exceeds model.num_layers = {model.num_layers}, so that no block has experts; "
            f"allowed: at most {model.num_layers}, for example 1"
        )
    return _expert_groups(model)


def _expert_groups(model: ModelConfig) -> str | None:
    experts, groups, top = model.num_experts, model.num_expert_groups, model.top_groups
    if experts % groups:
        fit = max(d for d in range(1, min(groups, experts, 100_000) + 1) if experts % d == 0)
        return f"model.num_expert_groups = {groups} does not divide model.num_experts = {experts}; a value that works: {fit}"
    if groups > 1 and experts // groups < 2:
        fit = max(d for d in range(1, min(experts // 2, 100_000) + 1) if experts % d == 0) if experts > 1 else 1
        return (
            f"model.num_expert_groups = {groups} leaves {experts // groups} expert a group, and a group is scored by its best "
            f"two; a value that works: {fit}"
        )
    if top > groups:
        return f"model.top_groups = {top} exceeds model.num_expert_groups = {groups}; allowed: at most {groups}"
    if model.top_k > top * experts // groups:
        fit = -(-model.top_k * groups // experts)
        return (
            f"model.top_k = {model.top_k} exceeds the {top * experts // groups} experts of the model.top_groups = {top} groups (of "
            f"model.num_expert_groups = {groups}) that a token may choose from; a value that works: top_groups = {fit}"
        )
    return None


def _balancing(model: ModelConfig) -> str | None:
    factor = model.capacity_factor
    if factor is not None and factor < 1:
        return (
            f"model.capacity_factor = {factor} would drop tokens even of a perfect balance; allowed: at least 1, or 0 for "
            f"dropless; a value that works: 1.25"
        )
    return None


def _own_block(model: ModelConfig) -> str | None:
    """A person's own block takes the place of what these keys say."""
    if model.block is not None and model.mixer != "attention":
        return f'model.block = {model.block!r} has no mixer; a value that works: mixer = "attention"'
    for key in ("num_experts", "key_value_rank", "mtp_layers"):
        value = getattr(model, key)
        if model.block is not None and value:
            return (
                f"model.block = {model.block!r} has no {key}, and model.{key} = {value}; a value that works: {key} = 0"
            )
    return None


def _mup(model: ModelConfig) -> str | None:
    """muP by initialisation and learning rates alone."""
    base, head = model.mup_base_hidden_size, model.mup_base_head_dim
    if base is None:
        return None
    stated = f"model.mup_base_hidden_size = {base}"
    if model.tie_embeddings:
        return f"{stated}: muP gives embedding and unembedding different scales; a value that works: tie_embeddings = false"
    if model.mixer != "attention":
        return f'{stated} is not known for model.mixer; what works: mixer = "attention", or no mup_base_hidden_size'
    for key in ("key_value_rank", "mtp_layers", "block"):
        if value := getattr(model, key):
            return (
                f"{stated} is not known for model.{key} = {value!r}; what works: {key} = 0, or no mup_base_hidden_size"
            )
    if head not in (None, model.head_dim) and model.qk_norm:
        return (
            f"model.mup_base_head_dim = {head} is not model.head_dim = {model.head_dim}: norms of queries and keys undo scores' "
            f"scale; a value that works: mup_base_head_dim = {model.head_dim}, with more heads"
        )
    return None


_CHECKS: tuple[Callable[[ModelConfig], str | None], ...] = (
    _own_block,
    _layers,
    _heads,
    _delta_rule,
    _attention_spans,
    _rotary_scaling,
    _norms_and_biases,
    _rotation,
    _mla,
    _experts,
    _feed_forward,
    _multi_token,
    _balancing,
    _mup,
)
