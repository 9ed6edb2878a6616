"""Hidden states across the ranks of `tp`: gathered before column-parallel matmuls, summed after row-parallel ones.

Shoeybi et al. 2019, section 3; with `parallel.sequence` also Korthikanti et al. 2022, section 4.2.2. Symbols: T tokens of a
microbatch, t the part of them whose hidden states this rank has (t = T without sequence parallelism).
"""

from collections.abc import Callable
from typing import Protocol

from fourfold.model.environment import Environment
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group, Parallel, Pending
from fourfold.model.weights import Weight


class InputSource(Protocol):
    """Where the input of a part of a layer came from, for its backward: the residual stream, or a norm of it."""

    def input(self) -> Array:
        """The input [t, hidden] again, as the forward was given it; to be asked for before `gradient`."""
        ...

    def gradient(self, combine: Callable[[], Array]) -> Array:
        """The gradient of the residual stream [t, hidden], that which goes past the part included. `combine` gives the gradient of
        the input [t, hidden], which may be overwritten, and runs in one fused region with the norm's backward."""
        ...


class Arriving:
    """An array that a collective, if any, is filling."""

    __slots__ = ("_array", "_work")

    def __init__(self, array: Array, work: Pending | None = None) -> None:
        self._array = array
        self._work = work

    def wait(self) -> Array:
        """The array, complete."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._array


def gather_over(x: Array, group: Group | None) -> Arriving:
    """Starts bringing every rank's rows together: [n, ...] -> [size x n, ...]; x itself without a group."""
    if group is None:
        return Arriving(x)
    full = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    return Arriving(full, group.all_gather(full, x))


def scatter_over(x: Array, group: Group | None) -> Arriving:
    """Starts summing every rank's rows and leaving each its own: [size x n, ...] -> [n, ...]; x itself without a group."""
    if group is None:
        return Arriving(x)
    part = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
    return Arriving(part, group.sum_scatter(x, part))


def gather_tokens(x: Array, parallel: Parallel) -> Arriving:
    """Starts bringing all tokens together. x [t, n] -> [T, n]; x itself where every rank has them all."""
    return gather_over(x, parallel.tp if parallel.sequence else None)


def sum_partial(x: Array, parallel: Parallel) -> Arriving:
    """Starts the sum of every rank's x [T, n] -> [t, n]. x belongs to the sum from now on."""
    tp = parallel.tp
    if tp is None or parallel.sequence:
        return scatter_over(x, tp)
    return Arriving(x, tp.all_reduce(x))


class ColumnInput:
    """The input of a column-parallel matmul, for its weight's gradient: gathered from now on, so that the gather runs beside the
    kernels until `add_matmul`; where the matmul is deferred, gathered then, from this rank's tokens alone."""

    def __init__(self, env: Environment, weight: Weight, local: Array) -> None:
        """`local` [t, in] must stay as it is."""
        self._env, self._weight, self._local = env, weight, local
        self._full: Arriving | None = None
        self._grad_output: Array | None = None
        self._beside: tuple[Weight, Array] | None = None
        if weight.deferred is None:
            self._gather()

    def add_matmul(self, grad_output: Array, beside: tuple[Weight, Array] | None = None) -> None:
        """weight.grad += grad_output^T @ input, now or deferred. grad_output [T, out] must stay as it is if deferred. `beside`:
        another weight of the input, in the compute format, with its own grad_output."""
        self._grad_output, self._beside = grad_output, beside
        if self._weight.deferred is None:
            self._multiply()
        else:
            self._weight.deferred.append(self._multiply, self._gather)

    def _gather(self) -> None:
        self._full = gather_tokens(self._local, self._env.parallel)

    def _multiply(self) -> None:
        assert self._full is not None
        full = self._full.wait()
        self._weight.add_matmul_now(self._env.gemms, self._grad_output, full)
        if self._beside is not None:
            weight, grad_output = self._beside
            weight.add_matmul_now(self._env.ops, grad_output, full)
        self._full = self._grad_output = self._beside = None


def column_backward(
    env: Environment, weight: Weight, bias: Weight | None, given: list[Array], source: InputSource
) -> Array:
    """Backward of input @ weight^T + bias: the gradient of the residual stream [t, hidden].

    `given`: the gradient of the matmul's output [T, out], taken out of the list, so that it is freed as soon as its last reader has
    run. `source`: of the input. Adds the weights' gradients.
    """
    grad_output = given.pop()
    inputs = ColumnInput(env, weight, source.input())
    arriving = sum_partial(env.gemms.matmul(grad_output, weight.data), env.parallel)
    inputs.add_matmul(grad_output)
    add_bias(env.ops, bias, grad_output)
    del inputs, grad_output
    grad = arriving.wait()
    del arriving
    return source.gradient(lambda: grad)


def replicated_backward(env: Environment, grad: Array, weight: Weight, x: Array) -> Array:
    """Backward of x [t, in] @ weight^T where every rank has all of the weight: the gradient of x, from grad [t, out]; adds the
    weight's."""
    gemms = env.gemms_of(weight.data.shape[0])
    weight.add_matmul(gemms, grad, x)
    return gemms.matmul(grad, weight.data)


def row_parallel(
    env: Environment, x: Array, weight: Weight, residual: Array | None, bias: Weight | None = None
) -> Array:
    """residual + bias + the sum over `tp` of x @ W^T. x [T, in], residual [t, out] (None: somebody else adds it), bias [out] -> [t,
    out]."""
    if env.parallel.tp is None and residual is not None:
        out = env.gemms.linear_add(residual, x, weight.data)
    else:
        out = env.gemms.linear(x, weight.data)
        if env.parallel.tp is not None:
            out = sum_partial(out, env.parallel).wait()
        if residual is not None:
            out.add_(residual)
    return out if bias is None else out.add_(bias.data)


def add_bias(ops: Operations, bias: Weight | None, grad: Array) -> None:
    """Adds a bias's gradient, at once: the sum of grad [tokens, out] over tokens."""
    if bias is not None:
        with ops.fused():
            bias.add(grad.sum(0, dtype=bias.grad.dtype))
