"""Compiles the kernels of RMSNorm to machine code for a GPU by Triton's own compiler; prints the bytes that each thread spills.

python -m tests.support.compile_norms 90 bf16 4096
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

from fourfold.norms import triton_kernels, triton_norm

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
IN_FP32 = {"scale", "parts"}
SIZES = {"rows", "rows_each", "width"}


def main(capability: int, dtype: str, width: int) -> None:
    constants = triton_norm.constants(FORMATS[dtype], width)
    warps = constants.pop("num_warps")
    constants |= {"EPS": 1e-5, "IS_AGAIN": False, "HAS_RESIDUAL": True}
    found = {}
    for name in ("forward_kernel", "backward_kernel"):
        kernel = getattr(triton_kernels, name)
        signature, fixed = {}, {}
        for index, argument in enumerate(kernel.arg_names):
            if argument in constants:
                signature[argument], fixed[(index,)] = "constexpr", constants[argument]
            elif argument in SIZES or argument.endswith("stride"):
                signature[argument] = "i32"
            else:
                signature[argument] = "*fp32" if argument in IN_FP32 else f"*{dtype}"
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        compiled = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
        assert compiled.asm["cubin"]
        found[name] = spilled(compiled.asm["ptx"], f"sm_{capability}{'a' * (capability == 90)}")
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
