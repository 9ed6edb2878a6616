"""Hidden states across the ranks of `tp`: gathered before column-parallel products, summed after row-parallel ones.

Shoeybi et al. 2019, section 3; with `parallel.sequence` also Korthikanti et al. 2022, section 4.2.2. Symbols: T tokens of a
microbatch, t the part of them whose hidden states this rank has (t = T without sequence parallelism).
"""

from torch import Tensor

from fourfold.model.parallel import Parallel, Work
from fourfold.model.weights import Weight


class Arriving:
    """A tensor that a collective, if any, is filling."""

    __slots__ = ("_tensor", "_work")

    def __init__(self, tensor: Tensor, work: Work | None = None) -> None:
        self._tensor = tensor
        self._work = work

    def wait(self) -> Tensor:
        """The tensor, complete."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._tensor


def gather_tokens(x: Tensor, parallel: Parallel) -> Arriving:
    """Starts bringing all tokens together. x [t, n] -> [T, n]; x itself where every rank has them all."""
    tp = parallel.tp
    if tp is None or not parallel.sequence:
        return Arriving(x)
    whole = x.new_empty((x.shape[0] * tp.size, x.shape[1]))
    return Arriving(whole, tp.all_gather(whole, x))


def sum_partial(x: Tensor, parallel: Parallel) -> Arriving:
    """Starts the sum of every rank's x [T, n] -> [t, n]. x belongs to the sum from now on."""
    tp = parallel.tp
    if tp is None:
        return Arriving(x)
    if not parallel.sequence:
        return Arriving(x, tp.all_reduce(x))
    part = x.new_empty((x.shape[0] // tp.size, x.shape[1]))
    return Arriving(part, tp.sum_scatter(x, part))


class ColumnInput:
    """The input of a column-parallel product, for its weight's gradient: gathered from now on, so that the gather runs beside
    what is computed until `add_product`; where the product is put off, gathered then, from this rank's tokens alone."""

    def __init__(self, weight: Weight, local: Tensor, parallel: Parallel) -> None:
        """`local` [t, in] must stay as it is."""
        self._weight, self._local, self._parallel = weight, local, parallel
        self._whole: Arriving | None = None
        self._grad_output: Tensor | None = None
        if weight.deferred is None:
            self._gather()

    def add_product(self, grad_output: Tensor) -> None:
        """weight.grad += grad_output^T @ input, now or put off. grad_output [T, out] must stay as it is if put off."""
        self._grad_output = grad_output
        if self._weight.deferred is None:
            self._multiply()
        else:
            self._weight.deferred.append(self._multiply, self._gather)

    def _gather(self) -> None:
        self._whole = gather_tokens(self._local, self._parallel)

    def _multiply(self) -> None:
        assert self._whole is not None
        assert self._grad_output is not None
        self._weight.add_product_now(self._grad_output, self._whole.wait())
        self._whole = self._grad_output = None
