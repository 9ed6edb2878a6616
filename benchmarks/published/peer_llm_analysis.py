"""llm-analysis (0.2.2): a case in its words, and, run as a script, its answers at an efficiency of 1, as it ships.

    PYTHON peer_llm_analysis.py < statements

A step is its FLOPs over the peak of the devices, times a constant efficiency: nothing waits for a link or for a stage."""

from typing import TYPE_CHECKING, Any

from peer import WRITTEN, Answer, Statement, require, require_usual, serve

if TYPE_CHECKING:
    from case import PublishedCase

DEVICES = {
    "a100-pcie-40": "a100-pcie-40gb",
    "a100-pcie-80": "a100-pcie-80gb",
    "a100-sxm-40": "a100-sxm-40gb",
    "a100-sxm-80": "a100-sxm-80gb",
    "a10g": "a10g-pcie-24gb",
    "h100-pcie": "h100-pcie-80gb",
    "h100-sxm": "h100-sxm-80gb",
    "mi100": "mi100-32gb",
    "rtx-a6000": "a6000-48gb",
    "v100-sxm-16": "v100-sxm-16gb",
    "v100-sxm-32": "v100-sxm-32gb",
}


NEAR = 0.1
"""How far a feed-forward's width may be from 4 hidden sizes, by whose FLOPs it is counted."""


def statement(case: "PublishedCase") -> Statement:
    """Raises `CannotStateError`. A feed-forward has two matrices: 3/2 of the width gives a gated one's parameters. Its FLOPs it
    counts as 4 x the hidden size whatever its width, which leaves mixtures of experts out."""
    model, layout = case.model, case.layout
    require((case.device in DEVICES, "a device without a file"))
    require_usual(case)
    width = model.ffn_size * 3 // 2 if model.gated else model.ffn_size
    require(
        (not model.num_experts, "the FLOPs of experts"),
        (abs(width / (4 * model.hidden_size) - 1) <= NEAR, "a feed-forward of another width than 4 hidden sizes"),
        (not model.is_mla, "MLA"),
        (layout.cp == 1, "context parallelism"),
        (model.num_heads * model.head_dim == model.hidden_size, "heads that are wider or narrower than the model"),
        (model.num_heads % model.num_kv_heads == 0, "queries that do not divide among keys"),
    )
    return {
        "gpu": DEVICES[case.device],
        "model": {
            "name": "stated",
            "num_layers": model.num_layers,
            "n_head": model.num_heads,
            "hidden_dim": model.hidden_size,
            "vocab_size": case.vocab_size,
            "max_seq_len": case.sequence_length,
            "num_key_value_heads": model.num_kv_heads,
            "ffn_embed_dim": width,
            "expansion_ratio": width / model.hidden_size,
        },
        "parallelism": {
            "tp_size": layout.tp,
            "pp_size": layout.pp,
            "dp_size": layout.dp,
            "sp_size": layout.tp if layout.sequence_parallel else 1,
        },
        "training": {
            "batch_size_per_gpu": layout.microbatch_sequences,
            "global_batch_size": case.global_sequences,
            "seq_len": case.sequence_length,
            "flash_attn": case.kernels.attention not in WRITTEN,
            "softmax_dropout": case.attention_dropout,
            "mlp_gated_linear_units": model.gated,
        },
        "recompute": layout.recompute,
        "zero": layout.zero,
    }


def answerer() -> Any:
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
    from llm_analysis.logger import logger

    logger.setLevel("ERROR")

    def answer(asked: Statement) -> Answer:
        gpu = get_gpu_config_by_name(asked["gpu"])
        degrees = ParallelismConfig(**asked["parallelism"])
        analysis = LLMAnalysis(ModelConfig(**asked["model"]), gpu, DtypeConfig(), degrees)
        recompute = ActivationRecomputation[asked["recompute"].upper()]
        found = analysis.training(
            **asked["training"], activation_recomputation=recompute, ds_zero=DSZeRO(asked["zero"])
        )
        memory = found["(weight+op_state+grad+act)_memory_per_gpu"]
        return {"step_seconds": found["latency_per_iter"], "memory_bytes": memory}

    return answer


if __name__ == "__main__":
    serve(answerer())
