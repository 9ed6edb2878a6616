"""GFLOP/s of a block's matmuls on one core: fp32 by PyTorch's own library (MKL on x86) and by oneDNN, and bf16.

    python benchmarks/matmuls.py                        a Llama block of 512, and one of 2048, 1024 tokens
    python benchmarks/matmuls.py --tokens 256 --threads 2

Seconds are those of the process's threads, so that other work on the machine disturbs little; the best of a few turns, which the
libraries take in alternation.
"""

import argparse
from collections.abc import Callable

import torch

from fourfold.kernels.matmul.libraries import processor_clock
from fourfold.kernels.remembered import processor
from fourfold.model import torch_onednn, torch_operations

SHAPES = ((512, 1024), (512, 512), (512, 3072), (1536, 512), (512, 4096), (2048, 2048), (2048, 8192))
"""Inputs and outputs of a linear layer."""
COLUMNS = ("fp32", "fp32 by oneDNN", "bf16")


def calls(tokens: int, inputs: int, outputs: int) -> dict[str, list[Callable[[], object]]]:
    """By kind of matmul, one call for each column."""
    found: dict[str, list[Callable[[], object]]] = {"forward": [], "input gradient": [], "weight gradient": []}
    for dtype, library in (
        (torch.float32, torch_operations),
        (torch.float32, torch_onednn),
        (torch.bfloat16, torch_operations),
    ):
        x, weight = torch.full((tokens, inputs), 0.5, dtype=dtype), torch.full((outputs, inputs), 0.01, dtype=dtype)
        grad, sums = torch.full((tokens, outputs), 1e-6, dtype=dtype), torch.zeros(outputs, inputs)
        found["forward"].append(lambda x=x, w=weight, by=library: by.linear(x, w))
        found["input gradient"].append(lambda g=grad, w=weight, by=library: by.matmul(g, w))
        found["weight gradient"].append(lambda s=sums, g=grad, x=x, by=library: by.accumulate(s, g, x, False))
    return found


def rates(tokens: int, inputs: int, outputs: int, turns: int) -> dict[str, list[float]]:
    """GFLOP/s by kind of matmul, in the order of COLUMNS."""
    found = {}
    for kind, libraries in calls(tokens, inputs, outputs).items():
        for call in libraries:
            call()
        seconds = [[processor_clock(call) for call in libraries] for _ in range(turns)]
        found[kind] = [2e-9 * tokens * inputs * outputs / min(each) for each in zip(*seconds, strict=True)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor()}; {options.threads} threads, {options.tokens} tokens, torch {torch.__version__}\n")
    print("| inputs x outputs | matmul | " + " | ".join(COLUMNS) + " |\n|---|---|---|---|---|")
    for inputs, outputs in SHAPES:
        for kind, each in rates(options.tokens, inputs, outputs, options.turns).items():
            cells = " | ".join(f"{rate:.0f}" for rate in each)
            print(f"| {inputs} x {outputs} | {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
