"""The passes of latent attention's projections, line by line after `latent.py`. No torch.

Symbols: T tokens, t those whose hidden states the rank holds, c query_rank (hidden_size where queries have no latent), r
key_value_rank, d rope_head_dim; q, k, v the widths of all of this rank's heads, u = k without its rotated part, and v.
"""

from dataclasses import dataclass

from fourfold.config import ModelConfig
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape, WeightProduct, norm_backward, norm_forward, rebuild_normed
from fourfold.model.work import Product


@dataclass(frozen=True)
class LatentSizes:
    """The symbols above, as numbers; `direct`: queries have no latent; `shared`: width of what is gathered and summed."""

    query_rank: int
    rank: int
    rope: int
    query: int
    value: int
    up: int
    rotated: int
    direct: bool

    @property
    def heads(self) -> int:
        """Width of q, k and v together."""
        return 2 * self.query + self.value

    @property
    def shared(self) -> int:
        return self.query_rank + self.rank + self.rope


def latent_sizes(model: ModelConfig, shape: Shape) -> LatentSizes:
    """Of one rank."""
    heads = model.num_heads // shape.tp
    return LatentSizes(
        query_rank=model.query_rank or model.hidden_size,
        rank=model.key_value_rank or 0,
        rope=model.rope_head_dim,
        query=heads * model.head_dim,
        value=heads * model.value_head_dim,
        up=heads * (model.nope_head_dim + model.value_head_dim),
        rotated=heads * model.rope_head_dim,
        direct=model.query_rank is None,
    )


def latent_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    """From the residual stream [t, h] to q, k and v (`qkv`) and, with a graph, what is saved."""
    z, tokens, part, h, e = (
        latent_sizes(model, shape),
        shape.tokens,
        shape.hidden_tokens,
        model.hidden_size,
        shape.element_bytes,
    )
    norm_forward(tape, shape, part, h, "1")
    tape.alloc(key_value_down=part * (z.rank + z.rope) * e)
    tape.matmul(part, z.rank + z.rope, h)
    norm_forward(tape, shape, part, z.rank, "key_value")
    if not z.direct:
        tape.alloc(query_down=part * z.query_rank * e)
        tape.matmul(part, z.query_rank, h)
        norm_forward(tape, shape, part, z.query_rank, "query")
    _gather(tape, shape, z)
    dropped = [] if keep else ["normed_1", "normed_key_value", *([] if z.direct else ["normed_query"])]
    if shape.sequence_parallel:
        tape.drop(*dropped)
    elif not z.direct:
        tape.drop(*(name for name in dropped if name == "normed_1"))
    tape.alloc(q=tokens * z.query * e)
    tape.matmul(tokens, z.query, z.query_rank)
    tape.drop(*(name for name in dropped if name != "normed_key_value"))
    tape.brief(tokens * z.rotated // 2 * e)
    tape.touch(tokens * z.rotated * e, 6, 2, launches=5)
    tape.alloc(up=tokens * z.up * e)
    tape.matmul(tokens, z.up, z.rank)
    tape.alloc(shared_key=tokens * z.rope * e)
    tape.alloc(k=tokens * z.query * e)
    tape.alloc(v=tokens * z.value * e)
    tape.touch(tokens * (z.query + z.value) * e, 2, 2, launches=3)
    tape.free("up", "shared_key")
    tape.drop("latents", *dropped)
    tape.free("q", "k", "v")
    tape.alloc(qkv=tokens * z.heads * e)
    if not graph:
        tape.drop("scale_1", "key_value_down", "scale_key_value", "query_down", "scale_query")


def _gather(tape: Tape, shape: Shape, z: LatentSizes) -> None:
    if shape.sequence_parallel:
        tape.alloc(own_latents=shape.hidden_tokens * z.shared * shape.element_bytes)
        tape.gather_tokens(shape, z.shared, "latents")
        tape.free("own_latents")


def latent_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool) -> None:
    """From the gradients of q, k and v, live whatever their name, to `grad` [t, h]; what was saved is freed."""
    z, tokens, part, h, e = (
        latent_sizes(model, shape),
        shape.tokens,
        shape.hidden_tokens,
        model.hidden_size,
        shape.element_bytes,
    )
    tape.alloc(grad_query=tokens * z.query * e)
    tape.brief(tokens * z.rotated // 2 * e)
    tape.touch(tokens * z.heads * e, 2, 2, launches=4)
    tape.touch(tokens * z.rotated * e, 6, 2, launches=5)
    tape.alloc(grad_shared_key=tokens * z.rope * e)
    tape.alloc(grad_up=tokens * z.up * e)
    if not keep:
        rebuild_normed(tape, shape, part, h, "1")
        if not z.direct:
            rebuild_normed(tape, shape, part, z.query_rank, "query")
    tape.column_input(shape, z.query_rank, "query")
    if not keep:
        rebuild_normed(tape, shape, part, z.rank, "key_value")
    tape.column_input(shape, z.rank, "key_value")
    tape.alloc(parts=tokens * (z.query_rank + z.rank) * e)
    tape.alloc(summed=tokens * z.shared * e)
    tape.matmul(tokens, z.query_rank, z.query)
    tape.matmul(tokens, z.rank, z.up)
    tape.touch(tokens * z.shared * e, 2, 0)
    tape.start_sum(shape, "summed", "grad_latents")
    tape.free("parts", "grad_shared_key")
    tape.product(shape, z.query, z.query_rank, "grad_query", "normed_1" if z.direct else "normed_query", gathered=True)
    tape.product(shape, z.up, z.rank, "grad_up", "normed_key_value", gathered=True)
    tape.release("grad_query", "grad_up", "gathered_query", "gathered_key_value")
    tape.finish_sum("summed")
    norm_backward(tape, shape, part, z.rank)
    tape.alloc(grad_down=part * (z.rank + z.rope) * e)
    _down_product(tape, shape, part, z.rank + z.rope, h, "grad_down")
    tape.alloc(grad=part * h * e)
    tape.release("grad_down")
    if not z.direct:
        norm_backward(tape, shape, part, z.query_rank)
        if shape.converts:
            tape.alloc(grad_query_down=part * z.query_rank * e)
        _down_product(tape, shape, part, z.query_rank, h, "grad_query_down" if shape.converts else "grad_latents")
        tape.brief(part * h * e)
    if z.direct or shape.converts:
        tape.drop("grad_latents")
    tape.release("grad_latents", "grad_query_down", "normed_1", "normed_query", "normed_key_value")
    tape.drop("key_value_down", "scale_key_value", "query_down", "scale_query")
    norm_backward(tape, shape, part, h)
    tape.touch(part * h * e, 3, 1)
    tape.drop("scale_1")


def _down_product(tape: Tape, shape: Shape, tokens: int, rows: int, columns: int, operand: str) -> None:
    """The gradient of a down projection, over this rank's tokens; and the gradient of what it projects."""
    tape.matmul(tokens, columns, rows)
    kernel = Product(rows, columns, tokens, accumulates=True)
    tape.weight_product(WeightProduct((operand, "normed_1"), kernel, shape.product_temporary(rows, columns)))
