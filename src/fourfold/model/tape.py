"""What one pass over a segment allocates and frees, sends and computes, in the order in which its functions do."""

from dataclasses import dataclass

from fourfold.model.shape import Shape
from fourfold.model.traffic import CollectiveKind, Traffic
from fourfold.model.work import Join, Pass, PassPart, Product, Start, Work


@dataclass(frozen=True)
class WeightProduct:
    """A weight's gradient as a matrix product that was put off: `operands` are dropped after it; `gathered`: bytes of its input
    that sequence parallelism brings together first; `temporary`: bytes of the product where formats differ."""

    operands: tuple[str, ...]
    kernel: Product
    temporary: int
    gathered: int = 0


class Tape:
    """Named allocations in bytes, their `total` and its peak; `work`: kernels and collectives, in order. `apart`: weight gradients
    are put off (`BackwardInput`), noted in `products`, their operands staying live."""

    def __init__(self, apart: bool = False) -> None:
        self.live: dict[str, int] = {}
        self.total = 0
        self.peak = 0
        self.work: list[Work] = []
        self.apart = apart
        self.products: list[WeightProduct] = []
        self._in_flight: set[str] = set()

    @property
    def flops(self) -> int:
        return sum(item.flops for item in self.work)

    @property
    def collectives(self) -> list[Traffic]:
        """In the order of starting."""
        return [item.traffic for item in self.work if isinstance(item, Start)]

    def alloc(self, **sizes: int) -> None:
        for name, size in sizes.items():
            self.total += size - self.live.get(name, 0)
            self.live[name] = size
        self.peak = max(self.peak, self.total)

    def free(self, *names: str) -> None:
        for name in names:
            self.total -= self.live.pop(name)

    def drop(self, *names: str) -> None:
        """Frees those of the names that are live."""
        for name in names:
            self.total -= self.live.pop(name, 0)

    def rename(self, before: str, after: str) -> None:
        self.live[after] = self.live.pop(before)

    def brief(self, *sizes: int) -> None:
        """An allocation freed at once."""
        self.peak = max(self.peak, self.total + sum(sizes))

    def matmul(self, rows: int, columns: int, inner: int, groups: int = 1) -> None:
        """[rows, inner] x [inner, columns], rows divided among `groups` experts."""
        self.work.append(Product(rows, columns, inner, groups=groups))

    def touch(self, size: int, passes: float, least: float, launches: int = 1, part: PassPart = "") -> None:
        """Operators that read and write a tensor of `size` bytes `passes` times, a fused one `least` times."""
        self.work.append(Pass(int(size * passes), int(size * least), launches, part))

    def send(self, kind: CollectiveKind, axes: str, size: int, name: str | None = None) -> None:
        """Starts a collective, waited for at once, or where `join(name)` stands."""
        key = name or "at once"
        self.work.append(Start(Traffic(kind, axes, size), key))
        self._in_flight.add(key)
        if name is None:
            self.join(key)

    def join(self, name: str) -> None:
        """Waits for what was started under this name, if anything was."""
        if name in self._in_flight:
            self._in_flight.remove(name)
            self.work.append(Join(name))

    # Hidden states over `tp`, as in tensor_parallel.py

    def gather_tokens(self, shape: Shape, width: int, name: str, later: bool = False) -> None:
        """Allocates `name` [T, width] and gathers into it, where tokens are split; `drop(name)` undoes it. `later`: `join(name)`
        waits for it."""
        if shape.sequence_parallel:
            size = shape.tokens * width * shape.element_bytes
            self.alloc(**{name: size})
            self.send("all_gather", "tp", size, name if later else None)

    def start_sum(self, shape: Shape, name: str, result: str) -> None:
        """Starts the sum over `tp` of `name` [T, width] into `result` [t, width]."""
        size = self.live[name]
        if not shape.sequence_parallel:
            if shape.tp > 1:
                self.send("all_reduce", "tp", size, name)
            self.rename(name, result)
            return
        part = size // shape.tp
        self.alloc(**{result: part, "landing": size - part if shape.exchange else 0})
        self.send("reduce_scatter", "tp", size, name)

    def finish_sum(self, name: str) -> None:
        self.join(name)
        self.drop(name, "landing")

    # Weight gradients

    def product(self, shape: Shape, rows: int, columns: int, *operands: str, gathered: bool = False) -> None:
        """A weight gradient [rows, columns] over T tokens, now or put off with its operands. `gathered`: put off, its input is
        gathered first where tokens are split."""
        size = shape.tokens * columns * shape.element_bytes if gathered and shape.sequence_parallel else 0
        kernel = Product(rows, columns, shape.tokens, accumulates=True)
        self.weight_product(WeightProduct(operands, kernel, shape.product_temporary(rows, columns), size))

    def weight_product(self, product: WeightProduct) -> None:
        """A weight's gradient, now or put off. What its operands are gathered by is waited for."""
        if self.apart:
            self.products.append(product)
            return
        for operand in product.operands:
            self.join(f"gathered_{operand.removeprefix('normed_')}")
        self.work.append(product.kernel)
        self.brief(product.temporary)

    def release(self, *names: str) -> None:
        """Frees what only a weight gradient still needs, unless that is put off."""
        if not self.apart:
            self.drop(*names)

    def operands(self) -> dict[str, int]:
        """What the products that were put off keep."""
        names = {name for product in self.products for name in product.operands}
        return {name: size for name, size in self.live.items() if name in names}

    def column_input(self, shape: Shape, width: int, name: str) -> None:
        """`ColumnInput`: starts gathering `name` for a weight gradient, unless that is put off."""
        if not self.apart:
            self.gather_tokens(shape, width, f"gathered_{name}", later=True)


def replay(products: list[WeightProduct], operands: dict[str, int]) -> Tape:
    """The pass that runs weight gradients put off (`Deferred.run`): each gather starts one product ahead."""
    tape = Tape()
    tape.alloc(**operands)

    def begin(index: int) -> None:
        if index < len(products) and products[index].gathered:
            tape.alloc(**{f"gathered {index}": products[index].gathered})
            tape.send("all_gather", "tp", products[index].gathered, f"gathered {index}")

    begin(0)
    for index, product in enumerate(products):
        begin(index + 1)
        tape.join(f"gathered {index}")
        tape.brief(product.temporary)
        tape.work.append(product.kernel)
        tape.drop(*product.operands, f"gathered {index}")
    return tape


def norm_forward(tape: Tape, shape: Shape, tokens: int, width: int, name: str) -> None:
    """`rms_norm`: allocates `scale_{name}` and `normed_{name}`."""
    tape.alloc(**{f"scale_{name}": tokens * shape.wide_bytes})
    tape.touch(tokens * width * shape.wide_bytes, 1, 0, launches=5)
    rebuild_normed(tape, shape, tokens, width, name)


def rebuild_normed(tape: Tape, shape: Shape, tokens: int, width: int, name: str) -> None:
    """`apply_rms`: allocates `normed_{name}`."""
    if shape.converts:
        tape.brief(tokens * width * (shape.wide_bytes + shape.element_bytes))
    tape.alloc(**{f"normed_{name}": tokens * width * shape.element_bytes})
    converted = 2 * shape.wide_bytes / shape.element_bytes if shape.converts else 0
    tape.touch(tokens * width * shape.element_bytes, 4 + 2 * converted, 2, launches=4 if shape.converts else 2)


def norm_backward(tape: Tape, shape: Shape, tokens: int, width: int) -> None:
    """`rms_norm_backward`: the projected gradient and its mean, and converted copies for bf16."""
    if shape.converts:
        tape.brief((3 * tokens * width + tokens + width) * shape.wide_bytes)
    else:
        tape.brief((tokens * width + tokens) * shape.wide_bytes)
    converted = (4 * shape.wide_bytes + 2 * shape.element_bytes) if shape.converts else 0
    passes = 14 * shape.wide_bytes + converted
    tape.touch(tokens * width, passes, 3 * shape.element_bytes, launches=8)
