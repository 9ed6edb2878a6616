"""The embedding: every token's row of a table split by rows over `tp`, and where positions are learned every position's row.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has.
"""

import torch.nn.functional as F
from torch import Tensor

from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.tensor_parallel import gather_tokens, sum_partial
from fourfold.model.weights import EmbeddingWeights, Weight


def embedding_forward(
    tokens: Tensor, weights: EmbeddingWeights, parallel: Parallel = ALONE, positions: Tensor | None = None
) -> Tensor:
    """tokens and, for learned positions, positions [batch, seq] -> hidden [t, hidden]. Of a table split by rows each rank gives
    its tokens' rows and zeros for others."""
    rows, elsewhere = _local_rows(tokens, weights.tokens, parallel)
    out = F.embedding(rows, weights.tokens.data)
    if elsewhere is not None:
        out = sum_partial(out.masked_fill_(elsewhere, 0), parallel).wait()
    if weights.positions is not None and positions is not None:
        out.add_(F.embedding(_own_tokens(positions, parallel), weights.positions.data))
    return out


def embedding_backward(
    tokens: Tensor,
    grad: Tensor,
    weights: EmbeddingWeights,
    parallel: Parallel = ALONE,
    positions: Tensor | None = None,
) -> None:
    """Adds the tables' gradients. tokens, positions [batch, seq], grad [t, hidden]."""
    arriving = gather_tokens(grad, parallel)
    if weights.positions is not None and positions is not None:
        values = grad.to(weights.positions.grad.dtype)
        _add_rows(weights.positions, _own_tokens(positions, parallel), values)
        del values
    index, elsewhere = _local_rows(tokens, weights.tokens, parallel)
    whole = arriving.wait()
    values = whole.to(weights.tokens.grad.dtype)
    if elsewhere is not None:
        values = values.masked_fill(elsewhere, 0) if values is grad else values.masked_fill_(elsewhere, 0)
    _add_rows(weights.tokens, index, values)


def _add_rows(weight: Weight, index: Tensor, values: Tensor) -> None:
    """Adds values [n, hidden] to the rows `index` [n] of a table's gradient."""
    weight.clear_if_fresh()
    if values.is_cuda:  # index_add_ adds in no fixed order there; sorted accumulation does
        weight.grad.index_put_((index,), values, accumulate=True)
    else:
        weight.grad.index_add_(0, index, values)


def _own_tokens(x: Tensor, parallel: Parallel) -> Tensor:
    """Of one number a token, [batch, seq], those of the tokens whose hidden states this rank has [t]."""
    flat = x.view(-1)
    if parallel.tp is None or not parallel.sequence:
        return flat
    return flat.view(parallel.tp.size, -1)[parallel.tp.index]


def _local_rows(tokens: Tensor, weight: Weight, parallel: Parallel) -> tuple[Tensor, Tensor | None]:
    """Every token's row in this rank's part of the table [T], and where that is another rank's [T, 1] (the row is then any)."""
    flat = tokens.view(-1)
    if parallel.tp is None:
        return flat, None
    size = weight.data.shape[0]
    rows = flat - parallel.tp.index * size
    elsewhere = (rows < 0) | (rows >= size)
    return rows.masked_fill_(elsewhere, 0), elsewhere.unsqueeze(-1)
