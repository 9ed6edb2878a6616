"""Loss with low-precision matmuls beside that in fp32: the same batches, the same first weights.

    python benchmarks/low_precision.py [--recipes fp32 mxfp8 ...] [--out FOLDER] [KEY=VALUE ...]

Every recipe trains the run of `make train` on one rank of one thread; `KEY=VALUE` changes the run of all. `mxfp8-e5m2` has
gradients in E5M2. `-floor` rounds scales down, as the OCP specification does: the largest number of a block may then lie above the
format's, and becomes that (Mishra et al. 2025, arXiv 2506.08027). fourfold has no such key; it is put in here alone.

Printed for each recipe: the mean loss of the last quarter of the steps; the largest difference of a running mean of 20 steps from
the first recipe's, as a share of that; the largest norm of gradients in the second half; whether it diverged: a loss or a norm that
is not finite, or a running mean that ends more than half a nat above its least.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.config import dump_run, load_run
from fourfold.data.prepare import prepare
from fourfold.model import low_precision
from tests.support.training_ranks import start_training

RUN = Path(__file__).parents[1] / "examples/stdlib.toml"
OPTIMIZER = {"lr": 3e-3, "schedule": "cosine", "warmup_steps": 40, "weight_decay": 0.1, "clip_norm": 1.0}
"""AdamW's, in place of the example's."""
MXFP8, E5M2 = "precision.gemm_dtype=mxfp8", "precision.gemm_gradients=e5m2"
RECIPES = {
    "fp32": [],
    "mxfp8": [MXFP8],
    "mxfp8-e5m2": [MXFP8, E5M2],
    "mxfp8-floor": [MXFP8],
    "mxfp8-e5m2-floor": [MXFP8, E5M2],
    "fp8": ["precision.gemm_dtype=fp8"],
    "fp8-block": ["precision.gemm_dtype=fp8-block"],
}
WINDOW, DIVERGED = 20, 0.5


def round_scales_down() -> None:
    """In this process: scale = 2^(floor(log2(largest magnitude)) - exponent of the format's largest number), with saturation."""

    rounded_up = low_precision.quantize

    def quantize(ops: Any, x: Any, element: Any, tile: low_precision.Tile, scales: Any, dtype: Any) -> Any:
        if not isinstance(x, torch.Tensor):  # the recorder's, which counts work
            return rounded_up(ops, x, element, tile, scales, dtype)
        tiles, power = x.unflatten(1, (-1, tile.columns)), low_precision.LARGEST_POWER[element]
        largest = ops.largest_magnitude(tiles).view(tiles.shape[:2])
        scales = torch.exp2(largest.log2().floor() - power).clamp(low_precision.SMALLEST_SCALE)
        numbers = (tiles.to(dtype) / scales.unsqueeze(-1)).clamp(-1.75 * 2.0**power, 1.75 * 2.0**power)
        eight = ops.e4m3 if element == "e4m3" else ops.e5m2
        return low_precision.Operand(numbers.to(eight).view(x.shape), scales, tile)

    low_precision.quantize = quantize


def train(out: Path, recipe: str, keys: list[str]) -> list[dict[str, Any]]:
    """The metrics of every step; of a run that was trained before, those there are."""
    if not (out / "metrics.jsonl").exists():
        stated = [*RECIPES[recipe], "run.threads_per_rank=1", "run.sample_tokens=0", *keys]
        out.mkdir(parents=True, exist_ok=True)
        run = out / "asked.toml"
        run.write_text(tomli_w.dumps(tomllib.loads(RUN.read_text()) | {"optimizer": OPTIMIZER}))
        prepared = prepare(load_run(run, stated).data, lambda line: None)
        config = load_run(run, [*stated, f"model.vocab_size={prepared.vocab_size}"])
        (out / "run.toml").write_text(dump_run(config))
        (out / "data.json").write_text(json.dumps({"prepared": str(prepared.path)}))
        (rank,) = start_training(out, 1, round_scales_down if recipe.endswith("floor") else None)
        code, errors = rank.finish(timeout=1e6)
        if code:
            print(f"{recipe} ended with {code}: {errors[-400:]}", file=sys.stderr)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def finite(step: dict[str, Any], key: str) -> float:
    return step[key] if step.get(key) is not None else math.nan


def smoothed(values: list[float]) -> list[float]:
    return [statistics.fmean(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["fp32", "mxfp8", "mxfp8-e5m2"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    root = options.out or Path(tempfile.mkdtemp(prefix="low-precision-"))
    print("| | steps | last quarter | worst difference | largest norm | diverged |\n|---|---|---|---|---|---|")
    first: list[float] = []
    for recipe in options.recipes:
        steps = train(root / recipe, recipe, options.keys)
        losses = [finite(step, "loss") for step in steps]
        norms = [finite(step, "grad_norm") for step in steps]
        means = smoothed(losses)
        first = first or means
        worst = max((abs(a - b) / b for a, b in zip(means, first, strict=False)), default=math.nan)
        last = statistics.fmean(losses[-len(losses) // 4 :])
        diverged = not math.isfinite(sum(losses) + sum(norms)) or means[-1] > min(means) + DIVERGED
        largest = max(norms[len(norms) // 2 :])
        print(
            f"| {recipe} | {len(steps)} | {last:.4f} | {worst:.2%} | {largest:.3g} | {'yes' if diverged else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
