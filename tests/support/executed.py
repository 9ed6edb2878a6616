"""The kernels that torch executes: a dispatch mode that counts matmuls, attention, and bytes and launches of all others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fourfold.model.work import Attention

ALLOCATIONS = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}
MATMULS = {"mm", "addmm", "addmm_"}
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
BY_INDEX = {"embedding", "index", "gather", "index_select"}
"""Operators that read as much as they write, and the index, however large what they read from is."""
ADDED_BY_INDEX = {"index_add_", "scatter_add_"}
"""Operators that read the index, the values, and as much of what they add to."""
PUT_BY_INDEX = {"index_put_", "scatter_"}
READ_TWICE = {"native_layer_norm": (0,), "native_layer_norm_backward": (0, 1)}
"""Operands that a kernel goes over twice: for statistics, then for the output. Recorder and test count both."""
WRITTEN_ONLY = {"copy_", "zero_", "fill_", "new_zeros", "new_ones", "new_full"}
SHAPES_ONLY = {"unsqueeze_", "squeeze_", "transpose_", "t_"}


class ExecutedKernels(TorchDispatchMode):
    """Within the `with` block. `flops`: of each matmul and attention, in order; `bytes`: what other kernels read and write, each
    distinct operand once; `launches`: of these; `trace`: their names and bytes. `head_sizes`: of queries and of values, without the
    columns that pad them for the kernel."""

    def __init__(self, head_sizes: tuple[int, int]) -> None:
        super().__init__()
        self._head_sizes = head_sizes
        self.flops: list[int] = []
        self.trace: list[tuple[str, int]] = []
        self._paused = False
        self._last_matmul = 0

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.trace)

    @property
    def launches(self) -> int:
        return sum(name != "residual" for name, _ in self.trace)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the count within the block: a collective's kernels here are not the model's."""
        self._paused = True
        yield
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self._count(func.overloadpacket.__name__, func._schema, args, kwargs or {}, result)
        return result

    def _count(self, name: str, schema: Any, args: Any, options: dict[str, Any], result: Any) -> None:
        inputs = _tensors([args, {k: v for k, v in options.items() if k not in ("out", "grad_input")}])
        outputs = _tensors(result)
        if name in ALLOCATIONS or name in SHAPES_ONLY or not outputs:
            return
        if name in MATMULS:
            self._matmul(name, args, outputs[0])
        elif name.startswith(ATTENTION):
            self._attend(args, name.endswith("backward"))
        elif schema.is_mutable or not _shared(inputs, outputs):  # else it is a view
            widens = inputs and outputs[0].element_size() > inputs[-1].element_size()
            if name in ("add_", "copy_") and widens and self._last_matmul == _key(inputs[-1]):
                self._last_matmul = 0  # a matmul's result is added to a gradient in a wider format: part of the matmul
                return
            self._touch(name, inputs, outputs, args)
        if name not in MATMULS and not _shared(inputs, outputs):
            self._last_matmul = 0

    def _matmul(self, name: str, args: Any, out: Tensor) -> None:
        inner = args[-1].shape[0]
        self.flops.append(2 * out.numel() * inner)
        self._last_matmul = _key(out)
        if name == "addmm":  # a matrix is copied into the result, which the matmul then reads
            self.trace.append(("residual", _bytes(args[0]) * (3 if args[0].dim() == 2 else 1)))

    def _attend(self, args: Any, backward: bool) -> None:
        """The kernel's last arguments are the rate of dropout and whether it is causal, left out where they are 0 and false."""
        q, k = args[1:3] if backward else args[:2]
        causal = (args[7:] if backward else args[4:]) == (True,)
        batch, heads, queries, _ = q.shape
        keys = k.shape[2] if causal else 2 * k.shape[2]
        self.flops.append(Attention(batch, queries, keys, heads, k.shape[1], *self._head_sizes, backward).flops)

    def _touch(self, name: str, inputs: list[Tensor], outputs: list[Tensor], args: Any) -> None:
        if name in BY_INDEX:
            size = sum(map(_bytes, inputs[1:])) + 2 * sum(map(_bytes, outputs))
        elif name in ADDED_BY_INDEX:
            index, values = inputs[1], inputs[2]
            size = _bytes(index) + _bytes(values) + 2 * values.numel() * outputs[0].element_size()
        elif name in PUT_BY_INDEX:
            rest = inputs[1:]
            values = rest[-1]
            size = sum(map(_bytes, rest)) + values.numel() * outputs[0].element_size()
        else:
            reads = inputs[1:] if name in WRITTEN_ONLY else inputs
            distinct = {(_key(x), x.storage_offset(), x.shape): _bytes(x) for x in reads}
            size = sum(distinct.values()) + sum(map(_bytes, outputs))
            size += sum(_bytes(args[i]) for i in READ_TWICE.get(name, ()))
        self.trace.append((name, size))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _key(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _shared(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    return bool({_key(x) for x in inputs} & {_key(x) for x in outputs})


def _bytes(x: Tensor) -> int:
    """Bytes of memory behind `x`: an expanded dim counts once."""
    size = x.element_size()
    for length, stride in zip(x.shape, x.stride(), strict=True):
        size *= length if stride or length == 0 else 1
    return size
