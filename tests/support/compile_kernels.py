"""Compiles the attention kernels to machine code for a GPU by Triton's own compiler; prints the shared memory that each takes.

python -m tests.support.compile_kernels 90 bf16 128 128
"""

import json
import sys
import warnings

import torch
import triton.language as tl
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fourfold.kernels.attention import triton_attention, triton_kernels

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}
IN_FORMAT = {"q", "k", "v", "out", "grad", "d_q", "d_k", "d_v"}
KINDS = {"lse": "*fp32", "shared": "*fp32", **dict.fromkeys(("first", "last", "begins", "ends"), "*i32")}


def main(capability: int, dtype: str, width: int, value: int) -> None:
    blocks = triton_attention.blocks_of(FORMATS[dtype], width)
    constants = {
        "QUERIES": blocks.queries, "KEYS": blocks.keys, "WIDTH": triton_attention.power_of_two(width),
        "VALUE": triton_attention.power_of_two(value), "SCALE": width**-0.5, "SUM_DTYPE": tl.float32,
        "LOWEST": torch.finfo(torch.float32).min,
    }  # fmt: skip
    shared = {}
    for name in ("forward_kernel", "keys_kernel", "queries_kernel"):
        kernel = getattr(triton_kernels, name)
        signature, fixed = {}, {}
        for index, argument in enumerate(kernel.arg_names):
            if argument in constants:
                signature[argument], fixed[(index,)] = "constexpr", constants[argument]
            elif argument.endswith("strides"):
                signature[argument], fixed[(index, 3)] = ("i32", "i32", "i32", "constexpr"), 1
            else:
                signature[argument] = f"*{dtype}" if argument in IN_FORMAT else KINDS.get(argument, "i32")
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
        compiled = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        shared[name] = compiled.metadata.shared
    print(json.dumps(shared))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
