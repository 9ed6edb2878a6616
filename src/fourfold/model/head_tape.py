"""The passes of embedding and head, line by line after `embedding.py` and `head.py`.

Symbols: T tokens, t those whose hidden states the rank holds, h hidden, V this rank's part of the vocabulary.
"""

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.model.norm_tape import norm_backward, norm_forward
from fourfold.model.shape import Shape, chunk_tokens
from fourfold.model.tape import Tape
from fourfold.model.work import Product


def embedding_forward(model: ModelConfig, shape: Shape) -> Tape:
    """Live at the end: `output` [t, h]."""
    tape = Tape()
    embed_tokens(tape, model, shape, "output")
    return tape


def embed_tokens(tape: Tape, model: ModelConfig, shape: Shape, name: str) -> None:
    """The tokens' rows: allocates `name` [t, h]."""
    _local_rows(tape, shape)
    tape.alloc(whole=shape.tokens * model.hidden_size * shape.element_bytes)
    tape.touch(tape.live["whole"], 2 if shape.tp == 1 else 4, 2)
    tape.start_sum(shape, "whole", name)
    tape.finish_sum("whole")
    if model.positions == "learned":
        tape.brief(tape.live[name])
        tape.touch(tape.live[name], 5, 3, launches=2)
    tape.drop("rows")


def embedding_backward(model: ModelConfig, shape: Shape) -> Tape:
    """The upstream gradient [t, h] lies outside; a copy of it is masked or converted."""
    tape = Tape()
    add_to_table(tape, model, shape)
    return tape


def add_to_table(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """`embedding_backward`."""
    width = model.hidden_size
    tape.gather_tokens(shape, width, "whole")
    same = shape.compute == shape.gradients
    if model.positions == "learned" and not same:
        tape.brief(shape.hidden_tokens * width * DTYPE_BYTES[shape.gradients])
    _local_rows(tape, shape)
    size = shape.tokens * width * DTYPE_BYTES[shape.gradients]
    if not same or (shape.tp > 1 and not shape.sequence_parallel):
        tape.brief(size)
        tape.touch(size, 2, 0)
    tape.touch(size, 3, 3)
    tape.drop("whole", "rows")


def _local_rows(tape: Tape, shape: Shape) -> None:
    """Every token's row in this rank's part of the table, and whether it is there."""
    if shape.tp > 1:
        tape.brief(11 * shape.tokens)
        tape.alloc(rows=9 * shape.tokens)


def head_forward(model: ModelConfig, shape: Shape) -> Tape:
    """The losses alone, of every depth."""
    tape = Tape()
    columns = model.vocab_size // shape.tp
    for _ in range(1 + model.mtp_layers):
        _start(tape, model, shape)
        for size in _chunks(shape, columns):
            _logits(tape, model, shape, size, columns)
            _exponentiate(tape, shape, size)
            tape.free("logits")
        tape.free("normed", "scale_head")
    return tape


def head_backward(model: ModelConfig, shape: Shape) -> Tape:
    """Forward and backward in one, of every depth. Live at the end: `grad` [(1 + D) t, h]."""
    tape = Tape()
    if not model.mtp_layers:
        _one_depth(tape, model, shape)
        return tape
    tape.alloc(grads=(1 + model.mtp_layers) * shape.hidden_tokens * model.hidden_size * shape.element_bytes)
    for _ in range(1 + model.mtp_layers):
        _one_depth(tape, model, shape)
        tape.free("grad", "scale_head")
    tape.rename("grads", "grad")
    return tape


def _one_depth(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """`head_loss_backward`: allocates `grad` [t, h]."""
    _start(tape, model, shape)
    width, columns = model.hidden_size, model.vocab_size // shape.tp
    for size in _chunks(shape, columns):
        elements = size * columns
        _logits(tape, model, shape, size, columns)
        _exponentiate(tape, shape, size)
        if shape.converts:
            tape.brief(elements * shape.element_bytes + size * (10 + 2 * shape.wide_bytes))
            tape.free("logits")
            tape.alloc(grad_logits=elements * shape.element_bytes)
        else:
            tape.rename("logits", "grad_logits")
        tape.brief(shape.product_temporary(columns, width))
        tape.touch(elements * shape.wide_bytes, 2 + (1 + shape.element_bytes / shape.wide_bytes) * shape.converts, 1, 3)
        tape.work.append(Product(columns, width, size, accumulates=True))
        tape.matmul(size, width, columns)
        tape.free("grad_logits")
    tape.start_sum(shape, "normed", "grad")
    tape.finish_sum("normed")
    norm_backward(tape, model, shape)


def _start(tape: Tape, model: ModelConfig, shape: Shape) -> None:
    """The final norm, all tokens of it: `normed` [T, h]."""
    norm_forward(tape, model, shape, "head")
    tape.gather_tokens(shape, model.hidden_size, "normed")
    if shape.sequence_parallel:
        tape.free("normed_head")
    else:
        tape.rename("normed_head", "normed")


def _chunks(shape: Shape, columns: int) -> list[int]:
    size = chunk_tokens(columns, accelerator=not shape.exchange)
    return [min(size, shape.tokens - start) for start in range(0, shape.tokens, size)]


def _logits(tape: Tape, model: ModelConfig, shape: Shape, tokens: int, columns: int) -> None:
    """Logits in the wide format, and their exponentials in place."""
    elements = tokens * columns
    tape.matmul(tokens, columns, model.hidden_size)
    if shape.converts:
        tape.brief(elements * (shape.wide_bytes + shape.element_bytes))
        tape.touch(elements, shape.wide_bytes + shape.element_bytes, 0)
    tape.alloc(logits=elements * shape.wide_bytes)
    tape.touch(elements * shape.wide_bytes, 6, 1, launches=5)


def _exponentiate(tape: Tape, shape: Shape, tokens: int) -> None:
    """Some numbers a token; of several ranks, every rank's maximum, sum of exponentials and target's logit."""
    if shape.tp == 1:
        tape.brief(tokens * (9 + 6 * shape.wide_bytes))
        return
    tape.brief(tokens * (10 + (8 + 4 * shape.tp) * shape.wide_bytes))
    tape.send("all_gather", "tp", 3 * tokens * shape.tp * shape.wide_bytes)
