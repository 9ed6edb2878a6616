"""Compiles the kernels of norms, cross-entropy, SwiGLU and rotary embedding to machine code for a GPU by Triton's own compiler;
prints the bytes that each thread spills.

python -m tests.support.compile_fused 90 bf16 4096
"""

import json
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import triton
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fourfold.kernels import loss_triton, norm_triton, pointwise_triton
from fourfold.kernels.triton_rows import constants as sizes

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
IN_FORMAT = {"x", "weight", "out", "grad", "residual", "grad_x", "logits", "gate_up", "cos", "sin"}
KINDS = {
    "column": "*i64",
    "here": "*i1",
    **dict.fromkeys(("rows", "rows_each", "width", "tokens", "table_rows", "heads", "half"), "i32"),
}
LOWEST = torch.finfo(torch.float32).min


def main(capability: int, dtype: str, width: int) -> None:
    norms = sizes(FORMATS[dtype], width)
    losses = sizes(FORMATS[dtype], 8 * width, loss_triton.LARGEST_BLOCK)
    pointwise = sizes(FORMATS[dtype], width, pointwise_triton.BLOCK)
    pairs = {"STEP": 1, "OFFSET": 64, "SIGN": 1, "HEADS": 32, "HALF": 64, "num_warps": 4}
    found = {}
    for kernel, constants in (
        (norm_triton.forward_kernel, {**norms, "EPS": 1e-5, "IS_AGAIN": False, "HAS_RESIDUAL": True}),
        (norm_triton.backward_kernel, {**norms, "HAS_RESIDUAL": True}),
        (loss_triton.statistics_kernel, {**losses, "LOWEST": LOWEST}),
        (loss_triton.gradient_kernel, losses),
        (pointwise_triton.swiglu_kernel, pointwise),
        (pointwise_triton.swiglu_backward_kernel, pointwise),
        (pointwise_triton.weighted_kernel, pointwise),
        (pointwise_triton.weighted_backward_kernel, pointwise),
        (pointwise_triton.rotate_kernel, {**pointwise, **pairs}),
    ):
        signature, fixed = {}, {}
        for index, argument in enumerate(kernel.arg_names):
            if argument in constants:
                signature[argument], fixed[(index,)] = "constexpr", constants[argument]
            elif argument.endswith("stride"):
                signature[argument] = "i32"
            else:
                signature[argument] = KINDS.get(argument, f"*{dtype}" if argument in IN_FORMAT else "*fp32")
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        options = {"num_warps": constants["num_warps"]}
        compiled = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        found[kernel.__name__] = spilled(compiled.asm["ptx"], f"sm_{capability}{'a' * (capability == 90)}")
    print(json.dumps(found))


def spilled(code: str, architecture: str) -> int:
    """Bytes that a thread's registers lack, by what NVIDIA's assembler says of PTX code."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(code)
        assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
        command = [
            str(assembler),
            "--verbose",
            f"--gpu-name={architecture}",
            str(source),
            "--output-file",
            f"{source}.o",
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stored, loaded = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report).groups()
    return int(stored) + int(loaded)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
