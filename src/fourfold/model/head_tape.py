"""The passes of embedding and head, line by line after `embedding.py` and `head.py`.

Symbols: T tokens, t those whose hidden states the rank holds, h hidden, V this rank's part of the vocabulary.
"""

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.model.norm_tape import norm_backward, norm_forward
from fourfold.model.shape import Shape, chunk_tokens
from fourfold.model.tape import Tape


def embedding_forward(model: ModelConfig, shape: Shape) -> Tape:
    """Live at the end: `output` [t, h]."""
    tape = Tape()
    _local_rows(tape, shape)
    tape.alloc(whole=shape.tokens * model.hidden_size * shape.element_bytes)
    tape.start_sum(shape, "whole", "output")
    tape.finish_sum("whole")
    if model.positions == "learned":
        tape.brief(tape.live["output"])
    return tape


def embedding_backward(model: ModelConfig, shape: Shape) -> Tape:
    """The upstream gradient [t, h] lies outside; a copy of it is masked or converted."""
    tape, width = Tape(), model.hidden_size
    tape.gather_tokens(shape, width, "whole")
    same = shape.compute == shape.gradients
    if model.positions == "learned" and not same:
        tape.brief(shape.hidden_tokens * width * DTYPE_BYTES[shape.gradients])
    _local_rows(tape, shape)
    if not same or (shape.tp > 1 and not shape.sequence_parallel):
        size = shape.tokens * width * DTYPE_BYTES[shape.gradients]
        tape.alloc(values=size)
    return tape


def _local_rows(tape: Tape, shape: Shape) -> None:
    """Every token's row in this rank's part of the table, and whether it is there."""
    if shape.tp > 1:
        tape.brief(11 * shape.tokens)
        tape.alloc(rows=9 * shape.tokens)


def head_forward(model: ModelConfig, shape: Shape) -> Tape:
    """The loss alone."""
    tape = _start(model, shape)
    columns = model.vocab_size // shape.tp
    for size in _chunks(shape, columns):
        _logits(tape, model, shape, size * columns)
        _exponentiate(tape, shape, size)
        tape.free("logits")
    return tape


def head_backward(model: ModelConfig, shape: Shape) -> Tape:
    """Forward and backward in one. Live at the end: `grad` [t, h]."""
    tape, width, columns = _start(model, shape), model.hidden_size, model.vocab_size // shape.tp
    for size in _chunks(shape, columns):
        elements = size * columns
        _logits(tape, model, shape, elements)
        _exponentiate(tape, shape, size)
        if shape.converts:
            tape.brief(elements * shape.element_bytes + size * (10 + 2 * shape.wide_bytes))
            tape.free("logits")
            tape.alloc(grad_logits=elements * shape.element_bytes)
        else:
            tape.rename("logits", "grad_logits")
        tape.brief(shape.product_temporary(columns, width))
        tape.free("grad_logits")
        tape.flops += 4 * elements * width
    tape.start_sum(shape, "normed", "grad")
    tape.finish_sum("normed")
    norm_backward(tape, model, shape)
    return tape


def _start(model: ModelConfig, shape: Shape) -> Tape:
    """The final norm, all tokens of it: `normed` [T, h]."""
    tape = Tape()
    norm_forward(tape, model, shape, "head")
    tape.gather_tokens(shape, model.hidden_size, "normed")
    if shape.sequence_parallel:
        tape.free("normed_head")
    else:
        tape.rename("normed_head", "normed")
    return tape


def _chunks(shape: Shape, columns: int) -> list[int]:
    size = chunk_tokens(columns)
    return [min(size, shape.tokens - start) for start in range(0, shape.tokens, size)]


def _logits(tape: Tape, model: ModelConfig, shape: Shape, elements: int) -> None:
    if shape.converts:
        tape.brief(elements * (shape.wide_bytes + shape.element_bytes))
    tape.alloc(logits=elements * shape.wide_bytes)
    tape.flops += 2 * elements * model.hidden_size


def _exponentiate(tape: Tape, shape: Shape, tokens: int) -> None:
    """Some numbers a token; of several ranks, every rank's maximum, sum of exponentials and target's logit."""
    if shape.tp == 1:
        tape.brief(tokens * (9 + 6 * shape.wide_bytes))
        return
    tape.brief(tokens * (10 + (8 + 4 * shape.tp) * shape.wide_bytes))
    tape.send("all_gather", "tp", 3 * tokens * shape.tp * shape.wide_bytes)
