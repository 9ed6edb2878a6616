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


def norm_backward(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """`normalize_backward`: a LayerNorm's gives the gradient beside the one that it gets, and those of weight and bias."""
    width, elements = model.hidden_size, shape.hidden_tokens * model.hidden_size
    if model.norm == "rms":
        rms.norm_backward(tape, shape, shape.hidden_tokens, width)
    elif shape.converts:
        tape.brief((3 * elements + 4 * width) * shape.wide_bytes)
    else:
        tape.brief((elements + 2 * width) * shape.wide_bytes)
