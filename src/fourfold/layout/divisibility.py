"""Divisibility rules of a layout's degrees. Each rule stands once, for the check of a run file and for the planner."""

from fourfold.config import ModelConfig
from fourfold.model.layers import mixers_of
from fourfold.model.local_parameter import part_size


def tensor_fault(model: ModelConfig, tp: int) -> tuple[str, int] | None:
    """The first size, (key, value), that `tp` does not split: heads and feed-forwards evenly, the vocabulary so that every rank has
    a row. Key and value heads may also divide `tp`: several ranks then hold copies of them. A person's own block is never split.
    None: all are split."""
    if model.block is not None:
        return ("model.block", 1) if tp > 1 else None
    kv = model.num_heads if model.is_mla else model.num_kv_heads
    if part_size(model.vocab_size, tp) is None:
        return "model.vocab_size", model.vocab_size
    mixers = mixers_of(model)
    sizes = {key: size for mixer in mixers for key, size in mixer.divided.items()}
    if model.has_dense_blocks:
        sizes["model.ffn_size"] = model.ffn_size
    if model.num_shared_experts:
        sizes["model.num_shared_experts x model.moe_ffn_size"] = model.num_shared_experts * model.moe_ffn_size
    for key, size in sizes.items():
        if size % tp:
            return key, size
    return ("model.num_kv_heads", kv) if kv % tp and tp % kv else None


def gemm_fault(
    model: ModelConfig, multiple: int, tp: int, cp: int, sequence_length: int, tokens: int, sequence_parallel: bool
) -> tuple[str, int] | None:
    """The first size, (name, value), on one rank that is no multiple of so many numbers, which share a scale: its features, and
    neighbouring tokens. Where all are, every layout quantizes the same numbers together. `tokens`: of a microbatch on a rank of
    cp."""
    sizes = {"model.hidden_size": model.hidden_size}
    for mixer in mixers_of(model):
        sizes |= mixer.features(tp)
    if model.is_mla:
        sizes["tokens that a rank of tp holds"] = tokens // tp if sequence_parallel else tokens
    if model.has_dense_blocks:
        sizes["ffn_size / tp"] = model.ffn_size // tp
    if model.num_shared_experts:
        sizes["shared experts' ffn / tp"] = model.num_shared_experts * model.moe_ffn_size // tp
    chunk = sequence_length // sequence_multiple(cp)
    sizes["tokens of a sequence that lie together (sequence_length, or sequence_length / (2 cp))"] = chunk
    return next(((name, size) for name, size in sizes.items() if size % multiple), None)


def splits_tensors(model: ModelConfig, tp: int) -> bool:
    """Whether `tp` splits heads, vocabulary and feed-forwards."""
    return tensor_fault(model, tp) is None


def splits_tokens(model: ModelConfig, tokens: int, tp: int, sequence_parallel: bool) -> bool:
    """Whether a microbatch's `tokens` divide by `tp`, where sequence parallelism or a router shares them out."""
    return tp == 1 or not (sequence_parallel or model.num_experts) or tokens % tp == 0


def sequence_multiple(cp: int) -> int:
    """The sequence length is a multiple of this: each rank of `cp` has two chunks, so that causal work is even."""
    return 2 * cp if cp > 1 else 1


def splits_heads(model: ModelConfig, tp: int, cp: int, ulysses: int) -> bool:
    """Whether `ulysses` divides `cp` and the heads of a rank of `tp`, over which it spreads them."""
    return cp % ulysses == 0 and (model.num_heads // tp) % ulysses == 0


def splits_experts(model: ModelConfig, ep: int, etp: int = 1) -> bool:
    """Whether the experts divide by `ep`, and by `etp` each one's feed-forward and the bias of its output, if it has one."""
    biases = model.hidden_size % etp == 0 or not model.expert_bias
    return model.num_experts % ep == 0 and model.moe_ffn_size % etp == 0 and biases


def spreads_experts(ranks: int, ep: int, etp: int) -> bool:
    """Whether `ranks` = dp_shard x cp x tp, which hold one set of the experts or several, divide by `ep` x `etp`."""
    return ranks % (ep * etp) == 0


def max_stages(model: ModelConfig) -> int:
    """The most stages of a pipeline: each has one segment (embedding, a block, head)."""
    return model.num_layers + 2
