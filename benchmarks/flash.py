"""Attention three ways on this device: the square of scores, tiles in plain PyTorch, and PyTorch's own tiled kernel.

python benchmarks/flash.py [--tokens 2048 --heads 4 --head-dim 64 --rounds 5]

All compute the same causal attention of one sequence in fp32, forward and backward. Errors are against fp64. Times are medians of
alternating rounds. The traffic is counted, not measured: what one head moves between slow and fast memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.cost.attention_traffic import FlashLoop, least_bytes, standard_passes, tiles_of
from fourfold.model import tiled_attention
from fourfold.model.torch_attention import attend, attend_backward
from fourfold.model.visible import Visible
from memory import LiveTensors

Answer = tuple[Tensor, Tensor, Tensor, Tensor]
"""Output and the gradients of q, k and v, each [1, heads, tokens, head_dim]."""


def square(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """The equations with all scores at once, as Dao et al. 2022 call standard attention (algorithms 0 and 3)."""
    scale = q.shape[-1] ** -0.5
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    weights = (q @ k.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1)
    out = weights @ v
    d_weights = grad @ v.mT
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True)) * scale
    return out, d_scores @ k, d_scores.mT @ q, weights.mT @ grad


def tiles(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """`fourfold.model.tiled_attention`."""
    visible, scale = Visible.causal(q.shape[2]), q.shape[-1] ** -0.5
    out, lse = tiled_attention.attend(q, k, v, visible, scale)
    return out, *tiled_attention.attend_backward(grad, q, k, v, out, lse, visible, scale)


def library(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """PyTorch's kernel, as a training step calls it."""
    grad, q, k, v = (x.transpose(1, 2) for x in (grad, q, k, v))
    scale = q.shape[-1] ** -0.5
    out, lse = attend(q, k, v, True, scale)
    answer = (out, *attend_backward(grad, q, k, v, out, lse, True, scale))
    return tuple(x.transpose(1, 2) for x in answer)  # type: ignore[return-value]


WAYS: dict[str, Callable[..., Answer]] = {"square of scores": square, "tiles": tiles, "PyTorch's kernel": library}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 2048), ("heads", 4), ("head-dim", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    shape = (1, args.heads, args.tokens, args.head_dim)
    exact = [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(4)]
    given = [x.float() for x in exact]
    expected = square(*exact)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for round in range(args.rounds):
        for name in list(WAYS) if round % 2 else reversed(WAYS):
            begun = time.perf_counter()
            WAYS[name](*given)
            seconds[name].append(time.perf_counter() - begun)
    print(f"{args.tokens} tokens, {args.heads} heads of {args.head_dim}, fp32, {torch.get_num_threads()} thread(s)\n")
    print("| | ms | ratio | peak of live tensors, MB | largest error against fp64 |\n|---|---|---|---|---|")
    first = statistics.median(seconds["square of scores"])
    for name, way in WAYS.items():
        with LiveTensors() as live:
            answer = way(*given)
        error = max(float((ours - theirs).abs().max()) for ours, theirs in zip(answer, expected, strict=True))
        median = statistics.median(seconds[name])
        print(f"| {name} | {1000 * median:.0f} | {median / first:.2f} | {live.peak_bytes / 1e6:.0f} | {error:.1e} |")
    print("\n| fast memory | causal | standard | tiles, 2022 | tiles, 2023 | least | standard / 2023 |")
    print("|---" * 7 + "|")
    for kilobytes in (48, 96, 192):
        for causal in (False, True):
            cut = tiles_of(args.tokens, args.head_dim, kilobytes * 1024, causal)
            standard = sum(each.bytes for each in standard_passes(cut).values())
            flash = {order: FlashLoop(cut, order).total.bytes for order in ("2022", "2023")}
            figures = [standard, flash["2022"], flash["2023"], least_bytes(cut)]
            cells = " | ".join(f"{x / 1e6:.2f} MB" for x in figures)
            print(f"| {kilobytes} KiB | {'yes' if causal else 'no'} | {cells} | {standard / flash['2023']:.1f} |")


if __name__ == "__main__":
    main()
