"""One trace of a person's own block, on fake tensors of a processor: memory that comes and goes, kernels in order.

The very functions that a run calls are run, under a dispatch mode. Nothing is computed; shapes and lifetimes are torch's own.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fourfold.config import ModelConfig, UserError
from fourfold.config.errors import error_text
from fourfold.model.own.autograd import run_own, run_own_backward
from fourfold.model.own.declare import own_parameters
from fourfold.model.own.events import Event, Gone, Made, Ran, TracedBlock, TracedShape
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.model.work import Attention, Elementwise, Gemm

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
ALLOCATES = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}
BY_INDEX = {"embedding", "index", "gather", "index_select"}
"""Operators that read as much as they write, and the index."""
WRITES_ONLY = {"copy_", "zero_", "fill_"}
"""Operations that write their first argument without reading it."""


def trace_block(model: ModelConfig, shape: TracedShape) -> TracedBlock:
    """Forward and backward of one block. Raises `UserError` for a function that cannot be traced."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _trace(model, shape)
    except UserError:
        raise
    except Exception as error:
        size = [shape.sequences, shape.length, model.hidden_size]
        raise UserError(
            f"model.block = {model.block!r}: forward fails on x {size} in {shape.compute} without data: {error_text(error)}; what "
            f"works: torch functions of x, weights and inputs whose shapes do not depend on values"
        ) from error


def _trace(model: ModelConfig, shape: TracedShape) -> TracedBlock:
    compute, gradients = torch_dtype(shape.compute), torch_dtype(shape.gradients)
    weights = {
        each.name: Weight(torch.empty(each.shape, dtype=compute), torch.empty(each.shape, dtype=gradients))
        for each in own_parameters(model)
    }
    x, grad = (torch.empty(shape.sequences, shape.length, model.hidden_size, dtype=compute) for _ in range(2))
    inputs = [x, *(torch.empty(shape.tables, dtype=compute) for _ in range(2))]
    lengths = [[shape.length]] * shape.sequences if shape.documents else None
    tracer = _Tracer([*inputs, grad, *(t for weight in weights.values() for t in (weight.data, weight.grad))])
    with tracer:
        out, _ = run_own(model, inputs, lengths, weights, keeps=False)
        plain, plain_output = tracer.cut(), tracer.number(out)
        del out
        tracer.cut()
        out, graph = run_own(model, inputs, lengths, weights, keeps=True)
        forward, output = tracer.cut(), tracer.number(out)
        del out
        tracer.cut()
        saved = tracer.live
        given = [grad, graph]
        del graph
        gradient = run_own_backward(given, weights)  # type: ignore[arg-type]
        backward = tracer.cut()
        return TracedBlock(plain, plain_output, forward, output, saved, backward, tracer.number(gradient))


class _Tracer(TorchDispatchMode):
    """Writes down events. Consecutive elementwise kernels are one region, as a fusing compiler makes them one kernel."""

    def __init__(self, outside: Iterable[Tensor]) -> None:
        super().__init__()
        self._outside = [x.untyped_storage() for x in outside]
        self._numbers: dict[int, int] = {storage._cdata: -1 - i for i, storage in enumerate(self._outside)}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._events: list[Event] = []
        self._next = 0
        self._clear()

    def _clear(self) -> None:
        self._bytes = self._launches = 0
        self._read: dict[_Part, int] = {}
        self._written: dict[_Part, int] = {}
        self._born: dict[int, int] = {}

    @property
    def live(self) -> tuple[int, ...]:
        """The numbers of the memory that is there and was made here."""
        return tuple(sorted(number for number in self._numbers.values() if number >= 0))

    def number(self, x: Tensor) -> int:
        return self._numbers[x.untyped_storage()._cdata]

    def cut(self) -> tuple[Event, ...]:
        """The events since the last cut."""
        self._end_region()
        events, self._events = tuple(self._events), []
        return events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        attends, multiplies = name.startswith(ATTENTION), packet in flop_registry
        if attends or multiplies:
            self._end_region()
        reads, outputs = _tensors([args, options]), _tensors(result)
        computes = func._schema.is_mutable or any(x.untyped_storage()._cdata not in self._numbers for x in outputs)
        for x in (*reads, *outputs):  # a constant of the person's module counts from its first use
            self._meet(x)
        if attends or multiplies:
            self._born.clear()
            if attends:
                self._events.append(Ran(_attention(args, name.endswith("backward")), tuple(map(self.number, reads))))
            else:
                flops = flop_registry[packet](*args, **options, out_val=result)
                self._events.append(Ran(_matmul(name, flops, outputs[0]), ()))
        elif computes and outputs and name not in ALLOCATES:  # else it is a view
            self._touch(name, reads, outputs)
        return result

    def _meet(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        if storage._cdata not in self._numbers:
            number, self._next = self._next, self._next + 1
            self._numbers[storage._cdata] = number
            self._references[number] = weakref.ref(storage, partial(self._leave, storage._cdata, number))
            self._events.append(Made(number, storage.nbytes()))
            self._born[number] = storage.nbytes()

    def _leave(self, key: int, number: int, _: Any) -> None:
        del self._numbers[key], self._references[number]
        self._born.pop(number, None)
        self._events.append(Gone(number))

    def _touch(self, name: str, reads: list[Tensor], outputs: list[Tensor]) -> None:
        if name in BY_INDEX:
            reads = [*reads[1:], *outputs]
        elif name in WRITES_ONLY:
            reads = reads[1:]
        distinct = {self._part(x): _bytes(x) for x in reads}
        for key, size in distinct.items():
            if key[0] not in self._born and key not in self._written:
                self._read[key] = size
        for x in outputs:
            if self.number(x) not in self._born:
                self._written[self._part(x)] = _bytes(x)
        self._bytes += sum(distinct.values()) + sum(map(_bytes, outputs))
        self._launches += 1

    def _part(self, x: Tensor) -> "_Part":
        return self.number(x), int(x.storage_offset()), tuple(x.shape)

    def _end_region(self) -> None:
        """One kernel would read what comes from outside once, and write what is still there once."""
        if self._launches:
            least = sum((*self._read.values(), *self._written.values(), *self._born.values()))
            read = tuple({key[0] for key in self._read})
            self._events.append(Ran(Elementwise(self._bytes, min(least, self._bytes), self._launches), read))
        self._clear()


_Part = tuple[int, int, tuple[int, ...]]
"""A view: the number of its memory, where it begins, its shape."""


def _matmul(name: str, flops: int, out: Tensor) -> Gemm:
    """A matmul of as many FLOPs and the same output; a batch of them has as many groups of rows."""
    groups = out.shape[0] if name in ("bmm", "baddbmm") else 1
    columns = out.shape[-1]
    return Gemm(out.numel() // columns, columns, flops // (2 * out.numel()), groups=groups)


def _attention(args: Any, backward: bool) -> Attention:
    """The kernel's last arguments are the rate of dropout and whether it is causal, left out where they are 0 and false."""
    q, k, v = args[1:4] if backward else args[:3]
    causal = (args[7:] if backward else args[4:]) == (True,)
    (batch, heads, queries, width), keys = q.shape, k.shape[2] if causal else 2 * k.shape[2]
    return Attention(batch, queries, keys, heads, k.shape[1], width, v.shape[-1], backward)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(x: Tensor) -> int:
    """Bytes of memory that a kernel reads of `x`: an expanded dim counts once."""
    size = x.element_size()
    for length, stride in zip(x.shape, x.stride(), strict=True):
        size *= length if stride or length == 0 else 1
    return size
