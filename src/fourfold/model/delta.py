"""The gated delta rule (Yang, Kautz & Hatamizadeh 2024) in chunks, and that of Kimi Delta Attention (Kimi Team 2025), in which each
channel of a key decays by itself: forward, and an explicit backward.

A head has a state S [d, value]. Token by token, with a_t = exp(g_t) the decay, a number or a diagonal matrix, and b_t the writing
strength,

    S_t = (I - b_t k_t k_t^T) a_t S_{t-1} + b_t k_t v_t^T        o_t = S_t^T q_t

In a chunk of tokens that begins with state S (WY form; Bischof & Van Loan 1987), with G_i the sum of g up to i in the chunk and
(X Y)_ij = sum over channels c of X_ic Y_jc exp(G_ic - G_jc) for j <= i,

    (I + A) U = b (V - (e^G K) S)      A = strictly lower part of b (K K)
    O = (e^G Q) S + P U                P = (Q K)
    S' = e^{G_C} S + (e^{G_C - G} K)^T U

Where heads decay as one, (X Y) is X Y^T times a matrix D, else `decayed_pairs.py` computes it. Everything but the chain of states
runs for all chunks at once. Backward makes states and U again, then goes through the same lines from their end; with
dR = (I + A)^-T dU, dA = -dR U^T. The gradient of G_i is what scaled a token's rows by it minus what scaled them by its inverse:
q_i dq_i + k_i dk_i of k as a row of A minus k_i dk_i of k as a column of A and P, all without P's diagonal, which no decay scales.
Beside that, what strong decays leave would be lost. Where a document starts, the state before it is
forgotten: D, e^G and e^{G_C} are 0 across it.

Shapes: q, k [batch, seq, key heads, d], v [batch, seq, heads, value], b [batch, seq, heads], g the same, or [batch, seq, heads, d],
each key head serving as many neighbouring heads; states [batch x heads, d, value]; matrices of chunks [batch x heads x chunks, C,
...]. Sums are in the format of the inputs, which is fp32 at least."""

from collections.abc import Sequence
from dataclasses import dataclass

from fourfold.model.decayed_pairs import pairs, pairs_backward
from fourfold.model.operations import Array, Operations

CHUNK = 64


@dataclass(frozen=True)
class Sizes:
    """The sizes of a sequence in chunks of `chunk` tokens: `rows` of it, `tokens` a row before it is filled up."""

    rows: int
    tokens: int
    chunk: int
    key_heads: int
    heads: int

    @property
    def chunks(self) -> int:
        return -(-self.tokens // self.chunk)

    @property
    def sequences(self) -> int:
        """Rows of every head."""
        return self.rows * self.heads

    def by_row(self, x: Array) -> Array:
        """[.., n, m] -> view [batch, heads, chunks, n, m]."""
        return x.view(self.rows, self.heads, self.chunks, *x.shape[1:])


@dataclass(frozen=True)
class Chunks:
    """A sequence in chunks. `entering` [.., C, n] is e^G, `leaving` [.., C, n] e^{G_C - G}, `through` [.., n, 1] e^{G_C}, all 0
    across the start of a document. n = 1 where heads decay as one: `decay` [batch, heads, chunks, C, C] is D then. Else n = d,
    `total` [.., C, d] is G, and `decay` [batch, 1, chunks, C, C] says which tokens are of one document, None: all."""

    q: Array
    k: Array
    v: Array
    strength: Array
    decay: Array | None
    total: Array | None
    entering: Array
    leaving: Array
    through: Array
    sizes: Sizes

    def chain(self, x: Array) -> Array:
        """[sequences x chunks, ...] -> view [sequences, chunks, ...]."""
        return x.unflatten(0, (self.sizes.sequences, self.sizes.chunks))

    def mask_(self, x: Array) -> None:
        """Multiplies pairs [.., C, C], or their gradient, by what `_pairs` leaves out."""
        if self.decay is not None:
            self.sizes.by_row(x).mul_(self.decay)


@dataclass(frozen=True)
class Solved:
    """Inputs of the chain of states: I + A [.., C, C] (its strictly lower part), (I + A)^-1 b V [.., C, value], in whose place the
    chain puts U, (I + A)^-1 b e^G K [.., C, d] and e^{G_C - G} K [.., C, d]."""

    system: Array
    updates: Array
    erasing: Array
    kept: Array


@dataclass(frozen=True)
class States:
    """States: those in which chunks begin [.., d, value], and that at the end [sequences, d, value]."""

    begun: Array
    end: Array


def forward(ops: Operations, given: Sequence[Array], positions: Array | None) -> Array:
    """The rule's output [batch, seq, heads, value] where one rank has all of a sequence. `given`: q, k, v, g, b."""
    chunks = in_chunks(ops, given, positions)
    inputs = solved(ops, chunks)
    return output(ops, chunks, inputs, states(ops, chunks, inputs, initial_state(chunks)))


def backward(ops: Operations, grad: list[Array], given: Sequence[Array], positions: Array | None) -> tuple[Array, ...]:
    """Gradients of q, k, v, g and b. `grad`: of the output [batch, seq, heads, value], taken out of the list."""
    chunks = in_chunks(ops, given, positions)
    with ops.fused():
        parts = cut(ops, grad.pop(), chunks.sizes)
    inputs = solved(ops, chunks)
    found = states(ops, chunks, inputs, initial_state(chunks))
    read = reads(ops, chunks, parts)
    at_ends = ends(ops, chunks, inputs, read, initial_state(chunks))
    return gradients(ops, chunks, inputs, read, found.begun, parts, at_ends)


def in_chunks(ops: Operations, given: Sequence[Array], positions: Array | None = None, size: int = CHUNK) -> Chunks:
    """`given`: q, k, v, g, b. `positions` [batch, seq]: how many tokens of its document stand before each token; None: every row
    goes on with what was before it. The first token of a row goes on with the state before it unless it is the first of its
    document."""
    q, k, v, g, b = given
    rows, tokens, heads = b.shape
    alone = len(g.shape) == len(b.shape)
    chunk = min(size, tokens)
    sizes = Sizes(rows, tokens, chunk if alone else _power_of_two(chunk), q.shape[2], heads)
    with ops.fused():
        q, k, v = (cut(ops, x, sizes) for x in (q, k, v))
        decays, strength = cut(ops, g.unsqueeze(-1) if alone else g, sizes), cut(ops, b.unsqueeze(-1), sizes)
        total = decays.cumsum(-2)
        del decays
        last = total[:, -1:, :]
        decay = sizes.by_row((total - total.transpose(1, 2)).tril_().exp_().tril_()) if alone else None
        leaving, through = (last - total).exp_(), last.exp().transpose(1, 2)
        entering = total.exp_() if alone else total.exp()
        kept = None if alone else total
        del total, last
        if positions is not None:
            decay = _forget(ops, positions, sizes, decay, entering, leaving, through)
    return Chunks(q, k, v, strength, decay, kept, entering, leaving, through, sizes)


def _power_of_two(number: int) -> int:
    """The least that is as large."""
    return 1 << (number - 1).bit_length()


def _forget(
    ops: Operations,
    positions: Array,
    sizes: Sizes,
    decay: Array | None,
    entering: Array,
    leaving: Array,
    through: Array,
) -> Array:
    """Zeros across the start of a document, in place: a token sees another `lag` tokens before it where it stands as far in its
    document. Returns `decay`, or where there is none what it would be multiplied by."""
    rows, chunk, chunks = sizes.rows, sizes.chunk, sizes.chunks
    fill = chunks * chunk - sizes.tokens
    if fill:
        beyond = positions[:, -1:] + ops.arange(1, fill + 1, positions)
        positions = ops.concatenate((positions, beyond), dim=1)
        del beyond
    each = positions.contiguous().view(rows, 1, chunks, chunk, 1)
    place = ops.arange(0, chunk, positions)
    last = each[..., -1:, :]
    seen = each >= place.view(chunk, 1) - place
    if decay is None:
        decay = seen
    else:
        decay.mul_(seen)
    del seen
    for x, reach, lag in (
        (entering, each, place.view(chunk, 1) + 1),
        (leaving, last, (chunk - 1) - place.view(chunk, 1)),
        (through, last, chunk),
    ):
        sizes.by_row(x).mul_(reach >= lag)
        del x, reach, lag
    return decay


def cut(ops: Operations, x: Array, sizes: Sizes) -> Array:
    """[batch, seq, heads, n], or key heads -> [batch x heads x chunks, C, n], filled up with zeros."""
    rows, tokens, own, width = x.shape
    shape, copies = (rows, own, sizes.heads // own, tokens, width), sizes.heads // own
    seen = x.permute(0, 2, 1, 3).unsqueeze(2).expand(*shape)
    out = x.new_empty((rows, own, copies, sizes.chunks * sizes.chunk, width))
    out[..., :tokens, :].copy_(seen)
    if sizes.chunks * sizes.chunk > tokens:
        out[..., tokens:, :].zero_()
    return out.view(sizes.sequences * sizes.chunks, sizes.chunk, width)


def _joined(x: Array, sizes: Sizes, heads: int) -> Array:
    """[batch x heads x chunks, C, n] -> [batch, seq, heads, n]; those of a key head are summed where `heads` are key heads."""
    full = x.view(sizes.rows, sizes.heads, sizes.chunks * sizes.chunk, x.shape[-1])[:, :, : sizes.tokens]
    if heads != sizes.heads:
        full = full.unflatten(1, (heads, -1)).sum(2)
    return full.permute(0, 2, 1, 3)


def initial_state(c: Chunks) -> Array:
    """Zeros [sequences, d, value]."""
    return c.q.new_zeros((c.sizes.sequences, c.k.shape[-1], c.v.shape[-1]))


def solved(ops: Operations, c: Chunks) -> Solved:
    """Matmuls and solutions of all chunks at once, before the chain of states."""
    width, value = c.k.shape[-1], c.v.shape[-1]
    system = _pairs(ops, c, c.k, c.k)
    with ops.fused():
        c.mask_(system)
        system.mul_(c.strength)
        given = c.v.new_empty((*c.v.shape[:2], value + width))
        ops.multiply_into(c.v, c.strength, given[..., :value])
        ops.multiply_into(c.k, c.strength * c.entering, given[..., value:])
        kept = c.k * c.leaving
    found = ops.solve(system, given)
    del given
    with ops.fused():
        updates, erasing = ops.copy(found[..., :value]), ops.copy(found[..., value:])
        del found
    return Solved(system, updates, erasing, kept)


def carried(ops: Operations, c: Chunks, s: Solved) -> Array:
    """How the state at the end depends on that in which the sequence begins: A and B of A S + B, side by side [sequences, d, d +
    value]."""
    width = c.k.shape[-1]
    both = c.q.new_zeros((c.sizes.sequences, width, width + c.v.shape[-1]))
    both.flatten(1, 2)[:, :: both.shape[-1] + 1].fill_(1)  # the identity, and nothing beside it
    chains = [c.chain(x) for x in (s.updates, s.erasing, s.kept, c.through)]
    for index in ops.steps(c.sizes.chunks):
        update, erase, keep, through = (x[:, index] for x in chains)
        written = ops.matmuls(erase, both)
        with ops.fused():
            written.neg_()
            written[..., width:].add_(update)
        added = ops.matmuls(keep.transpose(1, 2), written)
        with ops.fused():
            both.mul_(through).add_(added)
        del written, added, update, erase, keep, through
    return both


def states(ops: Operations, c: Chunks, s: Solved, state: Array) -> States:
    """The chain of states. `state` [sequences, d, value], in which the sequence begins, is overwritten."""
    begun = c.q.new_empty((c.q.shape[0], *state.shape[1:]))
    chains = [c.chain(x) for x in (begun, s.updates, s.erasing, s.kept, c.through)]
    for index in ops.steps(c.sizes.chunks):
        into, update, erase, keep, through = (x[:, index] for x in chains)
        with ops.fused():
            into.copy_(state)
        erased = ops.matmuls(erase, state)
        with ops.fused():
            update.sub_(erased)
        del erased
        written = ops.matmuls(keep.transpose(1, 2), update)
        with ops.fused():
            state.mul_(through).add_(written)
        del written, into, update, erase, keep, through
    del chains
    return States(begun, state)


def output(ops: Operations, c: Chunks, s: Solved, found: States) -> Array:
    """O [batch, seq, heads, value]."""
    with ops.fused():
        reading = c.q * c.entering
    out = ops.matmuls(reading, found.begun)
    del reading
    scores = _scores(ops, c)
    inner = ops.matmuls(scores, s.updates)
    del scores
    with ops.fused():
        out.add_(inner)
    del inner
    return _joined(out, c.sizes, c.sizes.heads)


def _scores(ops: Operations, c: Chunks) -> Array:
    """P."""
    scores = _pairs(ops, c, c.q, c.k)
    with ops.fused():
        c.mask_(scores)
    return scores


def _pairs(ops: Operations, c: Chunks, left: Array, right: Array) -> Array:
    """(X Y) of two matrices [.., C, d], yet to be masked."""
    return ops.matmuls(left, right.transpose(1, 2)) if c.total is None else pairs(ops, left, right, c.total)


def _pairs_backward(ops: Operations, c: Chunks, grad: Array, left: Array, right: Array) -> tuple[Array, Array]:
    """Gradients of both. `grad`: of (X Y), masked, zero but below its diagonal."""
    if c.total is not None:
        return pairs_backward(ops, grad, left, right, c.total)
    return ops.matmuls(grad, right), ops.matmuls(grad.transpose(1, 2), left)


@dataclass(frozen=True)
class Reads:
    """Inputs of the chain of gradients of states: P [.., C, C], dU by the output [.., C, value], in whose place the chain puts all
    of dU; and the gradient of each chunk's state by its reading [.., d, value]."""

    scores: Array
    updates: Array
    read: Array


def reads(ops: Operations, c: Chunks, grad: Array) -> Reads:
    """Matmuls of all chunks at once, before the chain of gradients. grad [.., C, value] of the output in chunks."""
    scores = _scores(ops, c)
    updates = ops.matmuls(scores.transpose(1, 2), grad)
    with ops.fused():
        reading = c.q * c.entering
    return Reads(scores, updates, ops.matmuls(reading.transpose(1, 2), grad))


def carried_back(ops: Operations, c: Chunks, s: Solved, r: Reads) -> Array:
    """The gradient of the state in which the sequence begins where none comes from behind its end [sequences, d, value]."""
    state = initial_state(c)
    chains = [c.chain(x) for x in (r.updates, r.read, s.kept, s.erasing, c.through)]
    for index in ops.steps(c.sizes.chunks, backwards=True):
        update, read, keep, erase, through = (x[:, index] for x in chains)
        written = ops.matmuls(keep, state)
        with ops.fused():
            written.add_(update)
        erased = ops.matmuls(erase.transpose(1, 2), written)
        del written
        with ops.fused():
            state.mul_(through).add_(read).sub_(erased)
        del erased, update, read, keep, erase, through
    return state


def ends(ops: Operations, c: Chunks, s: Solved, r: Reads, grad_state: Array) -> Array:
    """Gradients of the states in which chunks end [.., d, value]. grad_state [sequences, d, value] of the state at the end: that of
    the state in which the sequence begins takes its place."""
    at_end = r.read.new_empty(r.read.shape)
    chains = [c.chain(x) for x in (at_end, r.updates, r.read, s.kept, s.erasing, c.through)]
    for index in ops.steps(c.sizes.chunks, backwards=True):
        into, update, read, keep, erase, through = (x[:, index] for x in chains)
        with ops.fused():
            into.copy_(grad_state)
        written = ops.matmuls(keep, grad_state)
        with ops.fused():
            update.add_(written)
        del written
        erased = ops.matmuls(erase.transpose(1, 2), update)
        with ops.fused():
            grad_state.mul_(through).add_(read).sub_(erased)
        del erased, into, update, read, keep, erase, through
    return at_end


def gradients(
    ops: Operations, c: Chunks, s: Solved, r: Reads, begun: Array, grad: Array, at_ends: Array
) -> tuple[Array, ...]:
    """Gradients of q, k, v [batch, seq, their heads, n], g and b as they were given. `begun`, `at_ends`: states in which chunks
    begin, gradients of those in which they end."""
    solution = ops.solve(s.system.transpose(1, 2), r.updates, upper=True)
    with ops.fused():
        residues = ops.copy(solution)
        del solution
    inner = ops.matmuls(residues, s.updates.transpose(1, 2))
    with ops.fused():
        c.mask_(inner.tril_(-1).neg_())
    erased = ops.matmuls(residues, begun.transpose(1, 2))
    with ops.fused():
        written = c.k * c.strength
    d_row, d_k = _pairs_backward(ops, c, inner, written, c.k)
    del inner, written
    with ops.fused():
        d_row.sub_(erased.mul_(c.entering))
        del erased
        d_strength = (c.v * residues).sum(-1, keepdim=True).add_((c.k * d_row).sum(-1, keepdim=True))
        d_v = residues.mul_(c.strength)
        del residues
        d_row.mul_(c.strength)
    inner = ops.matmuls(grad, s.updates.transpose(1, 2))
    with ops.fused():
        diagonal = ops.copy(inner.diagonal(0, 1, 2).unsqueeze(-1))
        c.mask_(inner.tril_(-1))
    d_q, d_column = _pairs_backward(ops, c, inner, c.q, c.k)
    del inner
    read = ops.matmuls(grad, begun.transpose(1, 2))
    with ops.fused():
        d_q.addcmul_(read, c.entering)
        del read
        d_k.add_(d_column)
        del d_column
    at_end = ops.matmuls(s.updates, at_ends.transpose(1, 2))
    with ops.fused():
        at_end.mul_(c.leaving)
        d_k.add_(at_end)
        d_total = (c.q * d_q).addcmul_(c.k, d_row).addcmul_(c.k, d_k, value=-1)
        d_k.add_(d_row).addcmul_(c.q, diagonal)
        d_q.addcmul_(c.k, diagonal)
        del d_row, diagonal
        last = at_end.mul_(c.k).sum(1, keepdim=True)
        del at_end
        last.add_((begun * at_ends).sum(-1, keepdim=True).mul_(c.through).transpose(1, 2))
        d_total[:, -1:].add_(last)
        del last
        if c.total is None:
            d_total = d_total.sum(-1, keepdim=True)
        d_g = ops.flip(ops.flip(d_total, 1).cumsum(1), 1)
        del d_total
        sizes = c.sizes
        heads = (sizes.key_heads, sizes.key_heads, sizes.heads, sizes.heads, sizes.heads)
        found_all = [_joined(x, sizes, each) for x, each in zip((d_q, d_k, d_v, d_g, d_strength), heads, strict=True)]
        del d_q, d_k, d_v, d_g, d_strength
    d_q, d_k, d_v, d_g, d_strength = found_all
    return d_q, d_k, d_v, d_g.squeeze(-1) if c.total is None else d_g, d_strength.squeeze(-1)
