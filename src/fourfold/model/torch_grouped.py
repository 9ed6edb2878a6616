"""Matmuls of weight gradients, and grouped ones: consecutive groups of rows with a matrix each, all experts' tokens at once."""

import torch
from torch import Tensor

from fourfold.model.operations import Groups

GRADIENT_CHUNK_ELEMENTS = 2**27
"""Elements of the experts' weight gradients that exist at once where they cannot be added in place."""

KERNEL_MULTIPLE = 8
"""Columns that the grouped kernel takes are multiples of this: 16 bytes of bf16."""


def accumulate(grad: Tensor, grad_output: Tensor, inputs: Tensor, fresh: bool) -> None:
    """grad [out, in] += grad_output [T, out]^T @ inputs [T, in]; assigned where `fresh`. CUDA adds bf16 products to fp32 as they
    are, without rounding their sum first; a processor has no such matmul."""
    left, dtype = grad_output.t(), grad.dtype
    if grad.is_cuda and dtype == torch.float32 and inputs.dtype == torch.bfloat16:
        if fresh:
            torch.mm(left, inputs, out_dtype=dtype, out=grad)
        else:
            torch.addmm(grad, left, inputs, out_dtype=dtype, out=grad)
    elif dtype != inputs.dtype:
        update = torch.mm(left, inputs)
        grad.copy_(update) if fresh else grad.add_(update)
    elif fresh:
        torch.mm(left, inputs, out=grad)
    else:
        grad.addmm_(left, inputs)


def grouped_matmul(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """rows [m, k] sorted by expert, each with its expert's matrix: matrices [experts, k, n] -> [m, n]."""
    if _has_kernel(rows, matrices.shape[1], matrices.shape[2]):
        result: Tensor = torch._grouped_mm(rows, matrices, offs=groups.ends)
        return result
    out = rows.new_empty((rows.shape[0], matrices.shape[2]))
    for expert, start, end in groups.ranges():
        torch.mm(rows[start:end], matrices[expert], out=out[start:end])
    return out


def _has_kernel(rows: Tensor, *widths: int) -> bool:
    """Whether one grouped kernel can do it: bf16, rows of whole 16 bytes, something to do."""
    fits = all(width % KERNEL_MULTIPLE == 0 for width in widths)
    return rows.is_cuda and rows.dtype == torch.bfloat16 and fits and len(rows) > 0 and hasattr(torch, "_grouped_mm")


def grouped_accumulate(grad: Tensor, grad_output: Tensor, inputs: Tensor, groups: Groups, fresh: bool) -> None:
    """grad [experts, out, in] += grad_output_e^T @ inputs_e; assigned where `fresh`. Experts without rows get nothing."""
    if _has_kernel(inputs, grad_output.shape[1], inputs.shape[1]):
        _add_by_kernel(grad, grad_output, inputs, groups, fresh)
        return
    if fresh:
        for expert, size in enumerate(groups.sizes):
            if size == 0:
                grad[expert].zero_()
    for expert, start, end in groups.ranges():
        accumulate(grad[expert], grad_output[start:end], inputs[start:end], fresh)


def _add_by_kernel(grads: Tensor, grad_output: Tensor, inputs: Tensor, groups: Groups, fresh: bool) -> None:
    """Some outputs of all experts at a time, so that their updates take little memory. The host need not know the groups' sizes."""
    experts, outputs, width = grads.shape
    step = max(1, GRADIENT_CHUNK_ELEMENTS // (experts * width * KERNEL_MULTIPLE)) * KERNEL_MULTIPLE
    for first in range(0, outputs, step):
        columns = slice(first, first + step)
        update = torch._grouped_mm(grad_output[:, columns].t(), inputs, offs=groups.ends)
        update.masked_fill_(groups.empty, 0)  # a kernel may leave what it has no rows for as it was
        part = grads[:, columns]
        part.copy_(update) if fresh else part.add_(update)
