"""Processes of their own that `planner.py` runs: commands, and `llm-analysis` in the Python that has it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from fourfold.config import ModelConfig

# A process counts the memory of the one that started it until it is its own: so a small one starts it.
LAUNCHER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[1:], stderr=subprocess.DEVNULL)
seconds, kilobytes = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([code, seconds, kilobytes / 1024]), file=sys.stderr)
"""


class Ran(NamedTuple):
    """A whole process: wall seconds, peak of resident memory, what it printed."""

    seconds: float
    megabytes: float
    output: str


def command(*arguments: str) -> Ran:
    started = [sys.executable, "-I", "-S", "-c", LAUNCHER, *arguments]
    done = subprocess.run(started, capture_output=True, text=True, check=True)
    code, seconds, megabytes = json.loads(done.stderr)
    if code:
        sys.exit(f"failed: {' '.join(arguments)}")
    return Ran(seconds, megabytes, done.stdout)


class LlmAnalysis:
    """The peer in its own Python, which times itself."""

    def __init__(self, python: str, model: ModelConfig, gpu: str, batch: int, sequence_length: int) -> None:
        self.python, self.gpu, self.batch, self.sequence_length = python, gpu, batch, sequence_length
        script = str(Path(__file__).with_name("llm_analysis_peer.py"))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([python, script], text=True, **pipes)  # type: ignore[call-overload]
        first = self._process.stdout.readline()
        self.version = json.loads(first)["version"] if first else None
        # It knows two matrices of a feed-forward and takes its FLOPs from the hidden size alone: 3/2 of the width gives the three
        # gated ones' parameters.
        width = model.ffn_size * 3 // 2
        self.model = {
            "name": "planned",
            "num_layers": model.num_layers,
            "n_head": model.num_heads,
            "hidden_dim": model.hidden_size,
            "vocab_size": model.vocab_size,
            "max_seq_len": self.sequence_length,
            "num_key_value_heads": model.num_kv_heads,
            "ffn_embed_dim": width,
            "expansion_ratio": width / model.hidden_size,
            "model_type": "llama",
        }

    def ask(self, layouts: list[dict[str, Any]], repeats: int = 1, **more: Any) -> dict[str, Any]:
        machine = {"model": self.model, "gpu": self.gpu, "batch": self.batch, "sequence_length": self.sequence_length}
        question = {**machine, "layouts": layouts, "repeats": repeats, **more}
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def seconds(self, layouts: list[dict[str, Any]], repeats: int = 1) -> float:
        return float(self.ask(layouts, repeats)["seconds"])

    def command(self, model_file: Path, layout: dict[str, Any]) -> float:
        """Seconds of its own command for one layout without recomputation."""
        flags = {
            "model_name": model_file,
            "gpu_name": self.gpu,
            "log_level": "ERROR",
            "batch_size_per_gpu": layout["microbatch_sequences"],
            "global_batch_size": self.batch,
            "seq_len": self.sequence_length,
            "ds_zero": layout["zero"],
            "dp_size": layout["dp"],
            "tp_size": layout["tp"],
            "pp_size": layout["pp"],
            "mlp_gated_linear_units": True,
        }
        named = [f"--{name}={value}" for name, value in flags.items()]
        return command(self.python, "-m", "llm_analysis.analysis", "train", *named).seconds
