"""The gated delta rule (Yang, Kautz & Hatamizadeh 2024) in chunks: forward, and an explicit backward.

A head has a state S [d, value]. Token by token, with a_t = exp(g_t) the decay and b_t the writing strength,

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T        o_t = S_t^T q_t

In a chunk of tokens that begins with state S (WY form; Bischof & Van Loan 1987), with G_i the sum of g up to i in the chunk and
D_ij = exp(G_i - G_j) for j <= i,

    (I + A) U = b (V - e^G K S)        A = strictly lower part of b (K K^T) D
    O = e^G Q S + P U                  P = lower part of (Q K^T) D
    S' = e^{G_C} S + (e^{G_C - G} K)^T U

Everything but the chain of states runs for all chunks at once. Backward goes through the same lines from their end; with dR = (I +
A)^-T dU, dA = -dR U^T. Where a document starts, the state before it is forgotten: D, e^G and e^{G_C} are 0 across it.

Shapes: q, k [batch, seq, heads, d], v [batch, seq, heads, value], g, b [batch, seq, heads], states [batch, heads, d, value]; sums
are in the format of the inputs, which is fp32 at least."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


@dataclass(frozen=True)
class Chunks:
    """A sequence in chunks. Matrices are [batch, heads, chunks, C, ...]; `decay` [.., C, C] is D; `entering` [.., C, 1] is e^G,
    `leaving` [.., C, 1] e^{G_C - G}, `through` [.., 1, 1] e^{G_C}, all 0 across the start of a document."""

    q: Tensor
    k: Tensor
    v: Tensor
    strength: Tensor
    decay: Tensor
    entering: Tensor
    leaving: Tensor
    through: Tensor
    tokens: int

    @property
    def system(self) -> Tensor:
        """I + A."""
        inner = (self.strength * (self.k @ self.k.mT) * self.decay).tril(-1)
        return inner + torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)

    @property
    def scores(self) -> Tensor:
        """P."""
        return (self.q @ self.k.mT) * self.decay


def in_chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor, documents: Tensor | None = None, size: int = CHUNK
) -> Chunks:
    """`documents` [batch, seq]: the number of each token's document; None: every row is one. The first token of a row goes on with
    the state before it, unless its document number is that of no token before: state so by a state of zeros."""
    tokens = q.shape[1]
    fill = -tokens % size

    def cut(x: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, 2), (0, 0, 0, fill))
        return x.unflatten(2, (-1, size))

    q, k, v = cut(q), cut(k), cut(v)
    g, strength = (cut(x.unsqueeze(-1)) for x in (g, strength))
    total = g.cumsum(-2)
    decay = (total - total.mT).tril().exp().tril()
    entering, leaving = total.exp(), (total[..., -1:, :] - total).exp()
    through = total[..., -1:, :].exp()
    if documents is not None:
        padded = F.pad(documents, (0, fill), mode="replicate") if fill else documents
        number = padded.unflatten(1, (-1, size)).unsqueeze(1).unsqueeze(-1)  # [batch, 1, chunks, C, 1]
        before = torch.cat((number[:, :, :1, :1], number[:, :, :-1, -1:]), 2)  # the token before the chunk
        decay = decay * (number == number.mT)
        entering = entering * (number == before)
        leaving = leaving * (number == number[..., -1:, :])
        through = through * (number[..., -1:, :] == before)
    return Chunks(q, k, v, strength, decay, entering, leaving, through, tokens)


def forward(chunks: Chunks, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output [batch, seq, heads, value], the state at the end, and for backward the states in which chunks begin [batch, heads,
    chunks, d, value] and U [.., C, value]."""
    c = chunks
    given = torch.cat((c.strength * c.v, c.strength * c.entering * c.k), -1)
    solved = torch.linalg.solve_triangular(c.system, given, upper=False, unitriangular=True)
    written, erased = solved.split((c.v.shape[-1], c.k.shape[-1]), -1)
    kept = (c.leaving * c.k).mT
    states, updates = [], []
    for index in range(c.q.shape[2]):
        states.append(state)
        update = written[:, :, index] - erased[:, :, index] @ state
        state = c.through[:, :, index] * state + kept[:, :, index] @ update
        updates.append(update)
    begun, u = torch.stack(states, 2), torch.stack(updates, 2)
    out = (c.entering * c.q) @ begun + c.scores @ u
    return _joined(out, c.tokens), state, begun, u


def backward(
    chunks: Chunks, grad: Tensor, grad_state: Tensor, begun: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, g, b and of the state in which the sequence begins. grad: of the output; grad_state: of the state at
    the end."""
    c = chunks
    size = c.q.shape[3]
    grad = F.pad(grad.transpose(1, 2), (0, 0, 0, -c.tokens % size)).unflatten(2, (-1, size))
    system, kept, entered = c.system, c.leaving * c.k, c.entering * c.k
    from_output = c.scores.mT @ grad
    read = (c.entering * c.q).mT @ grad
    ends, solved = [], []
    for index in reversed(range(c.q.shape[2])):
        ends.append(grad_state)
        given = from_output[:, :, index] + kept[:, :, index] @ grad_state
        each = torch.linalg.solve_triangular(system[:, :, index].mT, given, upper=True, unitriangular=True)
        erased = entered[:, :, index].mT @ (c.strength[:, :, index] * each)
        grad_state = c.through[:, :, index] * grad_state + read[:, :, index] - erased
        solved.append(each)
    d_end, d_r = torch.stack(ends[::-1], 2), torch.stack(solved[::-1], 2)
    seen = c.k @ begun
    residue = c.v - c.entering * seen
    d_v = c.strength * d_r
    d_a = -(d_r @ u.mT).tril(-1) * c.decay
    d_p = (grad @ u.mT) * c.decay
    keys, raw_scores = c.k @ c.k.mT, c.q @ c.k.mT
    inner = c.strength * d_a
    d_q = d_p @ c.k + c.entering * (grad @ begun.mT)
    d_k = d_p.mT @ c.q + inner @ c.k + inner.mT @ c.k - (c.entering * d_v) @ begun.mT
    at_end = u @ d_end.mT
    d_k = d_k + c.leaving * at_end
    d_strength = (residue * d_r).sum(-1, keepdim=True) + (d_a * keys).sum(-1, keepdim=True)
    pairs = d_p * raw_scores + inner * keys
    leaving = c.leaving * (c.k * at_end).sum(-1, keepdim=True)
    d_total = pairs.sum(-1, keepdim=True) - pairs.sum(-2, keepdim=True).mT - leaving
    d_total = d_total + c.entering * (
        (c.q * (grad @ begun.mT)).sum(-1, keepdim=True) - (seen * d_v).sum(-1, keepdim=True)
    )
    last = leaving.sum(-2) + (c.through * begun * d_end).sum((-2, -1)).unsqueeze(-1)
    d_total[..., -1, :] += last
    d_g = d_total.flip(-2).cumsum(-2).flip(-2)
    tokens = c.tokens
    d_q, d_k, d_v = (_joined(x, tokens) for x in (d_q, d_k, d_v))
    return d_q, d_k, d_v, _joined(d_g, tokens)[..., 0], _joined(d_strength, tokens)[..., 0], grad_state


def _joined(x: Tensor, tokens: int) -> Tensor:
    """[batch, heads, chunks, C, n] -> [batch, tokens, heads, n]."""
    return x.flatten(2, 3)[:, :, :tokens].transpose(1, 2)
