"""What segments read beside hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass

from fourfold.model.operations import Array


@dataclass(frozen=True)
class Microbatch:
    """tokens, targets [batch, seq] (-100: no loss); cos, sin [seq or batch x seq, 1, head_dim / 2], empty where positions are
    learned; document_lengths: per row the lengths of its documents, or None where attention may cross them; positions
    [batch, seq]: where each token stands in its document, None unless they are learned; ahead_tokens, ahead_targets
    [D, batch, seq]: what the D MTP modules read, the k-th the tokens k places on in their document (any where there is none) and
    those tokens' targets (-100 where there is none)."""

    tokens: Array
    targets: Array
    cos: Array
    sin: Array
    document_lengths: Sequence[Sequence[int]] | None = None
    positions: Array | None = None
    ahead_tokens: Array | None = None
    ahead_targets: Array | None = None
