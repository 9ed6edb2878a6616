"""The passes of the routed feed-forward half, line by line after `feed_forward.py`, with experts loaded evenly. No torch.

Symbols: T tokens, t those whose hidden states the rank holds, n = T/tp those that it routes, N = n x etp, p = N x top_k pairs,
which are rows sent and, evenly loaded, rows received; h hidden, f a routed expert's ffn, s the shared experts', both this rank's;
e bytes of the compute format, w of the router's; indices have 8.

Exact: saved bytes and collectives. Peaks leave out counts and sorting scratch, some ten bytes a pair.
"""

from fourfold.config import ModelConfig
from fourfold.model.experts.exchange_cost import (
    RoutedSizes,
    arrive,
    arrive_home,
    combine,
    dispatch,
    gather_over_etp,
    routed_sizes,
    scatter_over_etp,
)
from fourfold.model.shape import Shape
from fourfold.model.tape import Tape, WeightProduct, norm_backward, norm_forward, rebuild_normed
from fourfold.model.work import Product

INDEX_BYTES = 8
SAVED = (
    "scale_2",
    "normed_2",
    "choice",
    "route",
    "ends",
    "rows",
    "row_scale",
    "gate_up",
    "shared_gate_up",
    "shared_product",
)


def routed_forward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, graph: bool) -> None:
    """From `middle` [t, h] to `output` [t, h] and, with a graph, what is saved (`SAVED`)."""
    z, e, w = routed_sizes(model, shape), shape.element_bytes, shape.wide_bytes
    norm_forward(tape, shape, shape.hidden_tokens, z.hidden, "2")
    if z.shared_ffn:
        tape.gather_tokens(shape, z.hidden, "gathered_2", later=True)
    _choose(tape, model, shape, z)
    gather_over_etp(tape, shape, z.hidden * e, z, "served")
    gather_over_etp(tape, shape, model.top_k * INDEX_BYTES, z)
    gather_over_etp(tape, shape, model.top_k * w, z)
    _plan(tape, shape, z)
    dispatch(tape, shape, z, z.hidden * e, "rows")
    dispatch(tape, shape, z, w, "row_scale")
    tape.drop("served")
    if z.shared_ffn:
        _shared_forward(tape, shape, z, keep)
    if not keep:
        tape.free("normed_2")
    arrive(tape, shape, z, z.hidden * e, "rows")
    arrive(tape, shape, z, w, "row_scale")
    tape.alloc(gate_up=z.pairs * 2 * z.ffn * e)
    tape.matmul(z.pairs, 2 * z.ffn, z.hidden, z.local_experts)
    tape.alloc(product=z.pairs * z.ffn * e)
    tape.touch(z.pairs * z.ffn * e, 7, 3, launches=3, part="experts")
    tape.alloc(expert_output=z.pairs * z.hidden * e)
    tape.matmul(z.pairs, z.hidden, z.ffn, z.local_experts)
    tape.free("product")
    combine(tape, shape, z, z.hidden * e, "expert_output")
    arrive_home(tape, shape, z, z.hidden * e, "expert_output")
    scatter_over_etp(tape, shape, z, z.hidden * e, "routed")
    _join(tape, shape, z, "output")
    if not graph:
        tape.drop(*SAVED, "middle")


def routed_backward(tape: Tape, model: ModelConfig, shape: Shape, keep: bool, balance_axes: str | None) -> None:
    """From the output's gradient to `grad_middle` [t, h]; what was saved is freed. `balance_axes`: the group, if any, over which
    a sequence's tokens are split (`cp+tp`), whose counts the balance loss needs."""
    z, e, w = routed_sizes(model, shape), shape.element_bytes, shape.wide_bytes
    if z.shared_ffn:
        tape.gather_tokens(shape, z.hidden, "upstream", later=True)
    gather_over_etp(tape, shape, z.hidden * e, z, "served")
    dispatch(tape, shape, z, z.hidden * e, "grads")
    tape.drop("served")
    if model.balance_loss and balance_axes is not None:
        tape.send("all_reduce", balance_axes, shape.sequences * z.experts * INDEX_BYTES)
    if not keep:
        rebuild_normed(tape, shape, shape.hidden_tokens, z.hidden, "2")
    if z.shared_ffn:
        _shared_backward(tape, shape, z, keep)
    arrive(tape, shape, z, z.hidden * e, "grads")
    _experts_backward(tape, shape, z)
    combine(tape, shape, z, z.hidden * e, "grad_rows")
    combine(tape, shape, z, w, "grad_scale")
    _product(tape, shape, z, 2 * z.ffn, z.hidden, "gate_up", "rows")
    tape.release("gate_up", "rows")
    tape.free("row_scale")
    arrive_home(tape, shape, z, z.hidden * e, "grad_rows")
    arrive_home(tape, shape, z, w, "grad_scale")
    scatter_over_etp(tape, shape, z, z.hidden * e, "routed")
    scatter_over_etp(tape, shape, z, model.top_k * w, "grad_weights", named=False)
    _router_backward(tape, shape, z)
    tape.drop("choice", "route")
    tape.release("ends")
    _join(tape, shape, z, "grad_middle")
    norm_backward(tape, shape, shape.hidden_tokens, z.hidden)
    tape.touch(shape.hidden_tokens * z.hidden * e, 3, 1)
    tape.release("normed_2")
    tape.drop("middle", "scale_2")


def _choose(tape: Tape, model: ModelConfig, shape: Shape, z: RoutedSizes) -> None:
    """`choose`: logits, experts and weights stay (`choice`)."""
    w, k = shape.wide_bytes, model.top_k
    logits = z.routed * z.experts * w
    if shape.converts:
        tape.brief((z.routed + z.experts) * z.hidden * w, logits)
    tape.alloc(choice=logits + z.routed * k * (INDEX_BYTES + w))
    tape.brief(logits * (3 if model.router == "sigmoid" else 1))
    tape.matmul(z.routed, z.experts, z.hidden)
    tape.touch(logits, 8, 2, launches=10)


def _plan(tape: Tape, shape: Shape, z: RoutedSizes) -> None:
    """`plan_route`: the pairs in their order, their places, the order of received rows, the experts' ends."""
    if shape.ep > 1:
        tape.send("all_to_all", "ep", z.experts * INDEX_BYTES)
    arrays = 3 if shape.ep > 1 and z.local_experts > 1 else 2
    tape.alloc(route=arrays * z.pairs * INDEX_BYTES, ends=4 * z.local_experts)


def _join(tape: Tape, shape: Shape, z: RoutedSizes, result: str) -> None:
    """`join`: `routed` and the shared path's `partial` become `result`."""
    whole = shape.tokens * z.hidden * shape.element_bytes
    tape.touch(shape.hidden_tokens * z.hidden * shape.element_bytes, 3, 1)
    tape.join("shared_sum")
    if shape.tp == 1 or shape.sequence_parallel:
        tape.drop("partial", "landing")
        tape.rename("routed", result)
        return
    if z.shared_ffn:
        tape.free("routed")
        tape.rename("partial", result)
        tape.send("all_reduce", "tp", whole)
        return
    tape.alloc(**{result: whole})
    tape.send("all_gather", "tp", whole)
    tape.free("routed")


def _shared_forward(tape: Tape, shape: Shape, z: RoutedSizes, keep: bool) -> None:
    e = shape.element_bytes
    tape.join("gathered_2")
    tape.alloc(shared_gate_up=shape.tokens * 2 * z.shared_ffn * e)
    tape.matmul(shape.tokens, 2 * z.shared_ffn, z.hidden)
    tape.alloc(shared_product=shape.tokens * z.shared_ffn * e)
    tape.touch(shape.tokens * z.shared_ffn * e, 5, 3, launches=2)
    tape.alloc(shared_sum=shape.tokens * z.hidden * e)
    tape.matmul(shape.tokens, z.hidden, z.shared_ffn)
    if not keep:
        tape.free("shared_product")
    tape.drop("gathered_2")
    _begin_sum(tape, shape, "shared_sum")


def _begin_sum(tape: Tape, shape: Shape, name: str) -> None:
    """`begin_sum`: starts the sum of `name` [T, h] into `partial` where tokens are split."""
    if shape.sequence_parallel:
        tape.start_sum(shape, name, "partial")
        tape.drop(name)
    else:
        tape.rename(name, "partial")


def _shared_backward(tape: Tape, shape: Shape, z: RoutedSizes, keep: bool) -> None:
    size = shape.tokens * z.shared_ffn * shape.element_bytes
    tape.alloc(activated=size)
    tape.touch(size, 2, 0)
    if not keep:
        tape.alloc(shared_product=size)
        tape.touch(size, 3, 3)
    tape.join("upstream")
    tape.product(shape, z.hidden, z.shared_ffn, "upstream", "shared_product")
    tape.release("shared_product")
    tape.alloc(grad_product=size)
    tape.matmul(shape.tokens, z.shared_ffn, z.hidden)
    tape.release("upstream")
    tape.brief(size)
    tape.touch(size, 9, 5, launches=3)
    tape.free("activated", "grad_product")
    tape.column_input(shape, z.hidden, "2")
    tape.alloc(shared_sum=shape.tokens * z.hidden * shape.element_bytes)
    tape.matmul(shape.tokens, z.hidden, 2 * z.shared_ffn)
    _begin_sum(tape, shape, "shared_sum")
    tape.product(shape, 2 * z.shared_ffn, z.hidden, "normed_2", "shared_gate_up", gathered=True)
    tape.release("shared_gate_up", "gathered_2")


def _experts_backward(tape: Tape, shape: Shape, z: RoutedSizes) -> None:
    e = shape.element_bytes
    size = z.pairs * z.ffn * e
    tape.alloc(activated=size, product=size)
    tape.alloc(grad_product=size)
    tape.matmul(z.pairs, z.ffn, z.hidden, z.local_experts)
    tape.brief(size)
    tape.touch(size, 20, 6, launches=9, part="experts")
    tape.alloc(grad_scale=z.pairs * shape.wide_bytes)
    _product(tape, shape, z, z.hidden, z.ffn, "grads", "product")
    tape.release("grads", "product")
    tape.brief(size)
    tape.free("grad_product", "activated")
    tape.alloc(grad_rows=z.pairs * z.hidden * e)
    tape.matmul(z.pairs, z.hidden, 2 * z.ffn, z.local_experts)


def _router_backward(tape: Tape, shape: Shape, z: RoutedSizes) -> None:
    w = shape.wide_bytes
    logits = z.routed * z.experts * w
    tape.alloc(grad_logits=logits)
    tape.brief(3 * logits)
    tape.brief((z.routed + (z.experts if shape.converts else 0)) * z.hidden * w)
    tape.touch(logits, 8, 2, launches=8)
    tape.matmul(z.routed, z.hidden, z.experts)
    temporary = z.routed * z.hidden * w if shape.converts else 0
    kernel = Product(z.experts, z.hidden, z.routed, accumulates=True)
    tape.weight_product(WeightProduct(("grad_logits", "normed_2"), kernel, temporary))
    tape.release("grad_logits")


def _product(tape: Tape, shape: Shape, z: RoutedSizes, rows: int, columns: int, *operands: str) -> None:
    """A weight gradient [rows, columns] of every local expert, one after the other."""
    kernel = Product(rows, columns, z.pairs, accumulates=True, groups=z.local_experts)
    tape.weight_product(WeightProduct((*operands, "ends"), kernel, shape.product_temporary(rows, columns)))
