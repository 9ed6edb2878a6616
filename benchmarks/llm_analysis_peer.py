"""`llm-analysis` in a Python of its own, for `planner.py`: reads one JSON object a line and answers each with one.

A question has `model`, `gpu` (its own fields), `batch`, `sequence_length`, `layouts`, `repeats`; the answer `seconds` for
one loop over all layouts, and what it predicts for the first.
"""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
from llm_analysis.logger import logger

RECOMPUTE = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.SELECTIVE,
    "full": ActivationRecomputation.FULL,
}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    model, gpu = ModelConfig(**question["model"]), get_gpu_config_by_name(question["gpu"])
    dtype, batch, length = DtypeConfig(), question["batch"], question["sequence_length"]

    def predict(layout: dict[str, Any]) -> dict[str, Any]:
        degrees = ParallelismConfig(tp_size=layout["tp"], pp_size=layout["pp"], dp_size=layout["dp"])
        analysis = LLMAnalysis(model, gpu, dtype, degrees, flops_efficiency=question.get("efficiency"))
        return analysis.training(
            batch_size_per_gpu=layout["microbatch_sequences"],
            global_batch_size=batch,
            seq_len=length,
            activation_recomputation=RECOMPUTE[layout["recompute"]],
            ds_zero=DSZeRO(layout["zero"]),
            mlp_gated_linear_units=True,
        )

    layouts = question["layouts"]
    start = time.perf_counter()
    for _ in range(question["repeats"]):
        for layout in layouts:
            predict(layout)
    seconds = (time.perf_counter() - start) / question["repeats"]
    first = predict(layouts[0])
    memory = first["(weight+op_state+grad+act)_memory_per_gpu"]
    return {"seconds": seconds, "step_seconds": first["latency_per_iter"], "memory_bytes": memory}


def main() -> None:
    logger.setLevel("ERROR")  # its default prints every prediction, which takes longer than to make it
    print(json.dumps({"version": version("llm-analysis")}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
