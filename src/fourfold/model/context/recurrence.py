"""The gated delta rule over sequences that one rank holds, or that are split across ranks.

A rank of context parallelism has two stretches of every row: part u of the front chunk and of the back chunk of its ring rank, u
being its place among the ranks that exchange heads for attention (zig-zag; `ContextParallel`). A stretch stands as a row of its
own. It leaves the state A S + B where S was the state before it (`delta.carried`): the ranks bring all A and B together, small
beside the tokens, and each folds what stands before its own stretches. Backward does the same from the other end: with G the
gradient of the state behind a stretch, that of the state before it is A^T G + C. So it is exact whatever the number of ranks. The
tokens that a convolution reads in front of a stretch are brought together too."""

from collections.abc import Sequence

from fourfold.model import delta
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array, Operations, RecurrenceKernels
from fourfold.model.parallel import Group, Parallel


def stretches(parallel: Parallel) -> int:
    """The rows that a row's tokens on this rank make."""
    return 1 if parallel.context is None else 2


def by_kernels(env: Environment) -> RecurrenceKernels | None:
    """Kernels that compute the rule; None: the formulas, as where states pass between ranks."""
    return env.ops.recurrence if env.parallel.context is None else None


class Line:
    """All stretches of a row in the order of the sequence. `own`: the places of this rank's two."""

    def __init__(self, ops: Operations, parallel: Parallel) -> None:
        assert parallel.context is not None
        ring, ulysses = parallel.context.ring, parallel.context.ulysses
        self._ops = ops
        self._groups = [(1 if each is None else each.size, each) for each in (ring, ulysses)]
        ranks, parts = (size for size, _ in self._groups)
        index, part = (0 if each is None else each.index for each in (ring, ulysses))
        self.own = (index * parts + part, (2 * ranks - 1 - index) * parts + part)
        self.number = 2 * ranks * parts

    def gathered(self, x: Array) -> Array:
        """x [2, ...], of this rank's stretches -> [number, ...]."""
        (ranks, ring), (parts, ulysses) = self._groups
        full = _gathered(_gathered(x, ulysses), ring).unflatten(0, (ranks, parts, 2))
        with self._ops.fused():
            front, back = full[:, :, 0], self._ops.flip(full[:, :, 1], 0)
            return self._ops.concatenate((front, back)).flatten(0, 1)

    def by_stretch(self, x: Array) -> Array:
        """x [rows, 2, ...] -> [2, rows, ...], in memory of its own."""
        return self._ops.copy(x.transpose(0, 1))

    def of_own(self, x: Array) -> Array:
        """x [number, rows, n, ...] -> this rank's two [rows x 2 x n, ...]."""
        both = self._ops.stack([x[place] for place in self.own], dim=1)
        return both.flatten(0, 2)


def _gathered(x: Array, group: Group | None) -> Array:
    if group is None:
        return x
    full = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    group.all_gather(full, x).wait()
    return full


def recurrence_forward(env: Environment, given: Sequence[Array], positions: Array | None, saved: Saved) -> Array:
    """The rule's output [rows, seq, heads, value]. `given`: q, k, v, g, b as in `delta.in_chunks`, two rows for each of the
    microbatch where the sequence is split."""
    ops = env.ops
    kernels = by_kernels(env)
    if kernels is not None:
        q, k, v, g, b = given
        return kernels.forward(q, k, v, g, b, positions)
    if env.parallel.context is None:
        return delta.forward(ops, given, positions)
    chunks = delta.in_chunks(ops, given, positions)
    solved = delta.solved(ops, chunks)
    line, own = Line(ops, env.parallel), delta.carried(ops, chunks, solved)
    with ops.fused():
        saved.keep(carried=ops.copy(own[..., : own.shape[1]]))
    state = _folded(ops, line, own, chunks.sizes, back=False)
    del own
    with ops.fused():
        saved.keep(begin=ops.copy(state))
    return delta.output(ops, chunks, solved, delta.states(ops, chunks, solved, state))


def recurrence_backward(
    env: Environment, grad: Array, given: Sequence[Array], positions: Array | None, saved: Saved
) -> tuple[Array, ...]:
    """Gradients of q, k, v, g and b. grad [rows, seq, heads, value] of the output."""
    ops = env.ops
    kernels = by_kernels(env)
    if kernels is not None:
        q, k, v, g, b = given
        gradients = kernels.backward(grad, q, k, v, g, b, positions)
        del q, k, v, g, b
        with ops.fused():
            return tuple(ops.upcast(x) for x in gradients)
    if env.parallel.context is None:
        alone = [grad]
        del grad
        return delta.backward(ops, alone, given, positions)
    chunks = delta.in_chunks(ops, given, positions)
    with ops.fused():
        cut = delta.cut(ops, grad, chunks.sizes)
    del grad
    solved = delta.solved(ops, chunks)
    found = delta.states(ops, chunks, solved, saved.take("begin"))
    reads = delta.reads(ops, chunks, cut)
    line, own = Line(ops, env.parallel), delta.carried_back(ops, chunks, solved, reads)
    with ops.fused():
        both = ops.concatenate((saved.take("carried").transpose(1, 2), own), dim=2)
        del own
    state = _folded(ops, line, both, chunks.sizes, back=True)
    del both
    at_ends = delta.ends(ops, chunks, solved, reads, state)
    del state
    return delta.gradients(ops, chunks, solved, reads, found.begun, cut, at_ends)


def _folded(ops: Operations, line: Line, own: Array, sizes: delta.Sizes, back: bool) -> Array:
    """The states before this rank's stretches [sequences, d, value], or, `back`, the gradients of those behind them. `own`
    [sequences, d, d + value]: A and B of each, or A^T and C."""
    width = own.shape[1]
    with ops.fused():
        sent = line.by_stretch(own.unflatten(0, (sizes.rows // 2, 2, sizes.heads)))
    every = line.gathered(sent).flatten(1, 2)
    del sent
    state = every.new_zeros((*every.shape[1:3], every.shape[3] - width))
    met = every.new_empty((line.number, *state.shape))
    for index in ops.steps(line.number, backwards=back):
        with ops.fused():
            met[index].copy_(state)
        moved = ops.matmuls(every[index, ..., :width], state)
        with ops.fused():
            state.copy_(moved)
            state.add_(every[index, ..., width:])
        del moved
    del state, every
    with ops.fused():
        return line.of_own(met.unflatten(1, (sizes.rows // 2, sizes.heads)))


def halo(env: Environment, mixed: Array, before: int) -> Array:
    """The tokens in front of each of this rank's stretches [rows, before, ...], zeros in front of the sequence. mixed [rows, seq,
    G, c]."""
    ops, line, reach = env.ops, Line(env.ops, env.parallel), min(before, mixed.shape[1])
    with ops.fused():
        sent = ops.copy(mixed[:, mixed.shape[1] - reach :].unflatten(0, (-1, 2)).permute(*_STRETCHES))
    every = line.gathered(sent).flatten(0, 1)
    del sent
    with ops.fused():
        tokens = ops.concatenate((every.new_zeros((before, *every.shape[1:])), every))
        del every
        spans = [tokens[place * reach : place * reach + before] for place in line.own]
        return ops.stack(spans).permute(*_ROWS).flatten(0, 1)


def halo_backward(env: Environment, grad: Array, tokens: int) -> Array:
    """The gradient of the last tokens of this rank's stretches [rows, reach, ...] by what stands behind them. grad [rows, before,
    ...] of what stood in front of this rank's; `tokens`: of a stretch."""
    ops, line, before = env.ops, Line(env.ops, env.parallel), grad.shape[1]
    reach = min(before, tokens)
    with ops.fused():
        sent = ops.copy(grad.unflatten(0, (-1, 2)).permute(*_STRETCHES))
    every = line.gathered(sent)
    del sent
    summed = every.new_zeros((before + line.number * reach, *every.shape[2:]))
    for place in ops.steps(line.number):
        with ops.fused():
            summed[place * reach : place * reach + before].add_(every[place])
    del every
    with ops.fused():
        spans = [summed[before + place * reach : before + (place + 1) * reach] for place in line.own]
        return ops.stack(spans).permute(*_ROWS).flatten(0, 1)


_STRETCHES, _ROWS = (1, 2, 0, 3, 4), (2, 0, 1, 3, 4)
"""[rows, 2, tokens, G, c] as [2, tokens, rows, G, c], and back."""
