"""The passes of a norm of the residual stream, line by line after `norm.py`. No torch."""

from fourfold.config import ModelConfig
from fourfold.model import tape as rms
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape


def norm_forward(tape: Tape, model: ModelConfig, shape: Shape, name: str) -> None:
    """`normalize` of x [t, hidden]: allocates `scale_{name}`, its statistics, and `normed_{name}`."""
    if model.norm == "rms":
        rms.norm_forward(tape, shape, shape.hidden_tokens, model.hidden_size, name)
        return
    tape.alloc(**{f"scale_{name}": 2 * shape.hidden_tokens * shape.wide_bytes})
    _layer_norm(tape, model, shape, name)


def norm_again(tape: Tape, model: ModelConfig, shape: Shape, name: str) -> None:
    """`normalize_again`: allocates `normed_{name}`."""
    if model.norm == "rms":
        rms.rebuild_normed(tape, shape, shape.hidden_tokens, model.hidden_size, name)
        return
    tape.alloc(statistics=2 * shape.hidden_tokens * shape.wide_bytes)
    _layer_norm(tape, model, shape, name)
    tape.free("statistics")


def _layer_norm(tape: Tape, model: ModelConfig, shape: Shape, name: str) -> None:
    """`layer_norm` beside its statistics: for bf16 it works on converted copies."""
    width, elements = model.hidden_size, shape.hidden_tokens * model.hidden_size
    if shape.converts:
        tape.brief((2 * elements + 2 * width) * shape.wide_bytes)
        tape.brief(elements * (shape.wide_bytes + shape.element_bytes))
    tape.alloc(**{f"normed_{name}": elements * shape.element_bytes})
    converted = 2 * shape.wide_bytes / shape.element_bytes if shape.converts else 0
    tape.touch(elements * shape.element_bytes, 3 + converted, 2, launches=3 if shape.converts else 1)


def norm_backward(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """`normalize_backward`: a LayerNorm's gives the gradient beside the one that it gets, and those of weight and bias."""
    width, elements = model.hidden_size, shape.hidden_tokens * model.hidden_size
    if model.norm == "rms":
        rms.norm_backward(tape, shape, shape.hidden_tokens, width)
        return
    if shape.converts:
        tape.brief((3 * elements + 4 * width) * shape.wide_bytes)
    else:
        tape.brief((elements + 2 * width) * shape.wide_bytes)
    converted = 6 * shape.element_bytes if shape.converts else 0
    tape.touch(elements, 5 * shape.wide_bytes + converted, 3 * shape.element_bytes, launches=4)


def norm_product_backward(
    tape: Tape, model: ModelConfig, shape: Shape, name: str, product: tuple[int, str], result: str, keep: bool
) -> None:
    """`operators.norm_product_backward` for `product`: its width and what holds its gradient [T, width]. Allocates `result`."""
    tokens, h = shape.tokens, model.hidden_size
    width, gradient = product
    whole = f"grad_whole_{name}"
    if not keep:
        norm_again(tape, model, shape, name)
    tape.column_input(shape, h, name)
    tape.alloc(**{whole: tokens * h * shape.element_bytes})
    tape.matmul(tokens, h, width)
    tape.start_sum(shape, whole, result)
    tape.product(shape, width, h, f"normed_{name}", gradient, gathered=True)
    tape.release(f"normed_{name}", gradient, f"gathered_{name}")
    tape.finish_sum(whole)
    norm_backward(tape, model, shape)
    tape.touch(shape.hidden_tokens * h * shape.element_bytes, 3, 1)  # the residual's gradient is added
