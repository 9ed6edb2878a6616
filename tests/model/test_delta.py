"""The gated delta rule in chunks is the rule token by token, and its backward is autograd's."""

import pytest
import torch
from torch import Tensor

from fourfold.model import delta
from fourfold.model import torch_operations as ops


def by_tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    copies = v.shape[2] // q.shape[2]
    q, k = q.repeat_interleave(copies, 2), k.repeat_interleave(copies, 2)
    outputs = []
    for t in range(q.shape[1]):
        decay = g[:, t].exp()[(..., *[None] * (5 - g.dim()))]
        if positions is not None:
            decay = decay * (positions[:, t] > 0)[:, None, None, None]
        key, strength = k[:, t], b[:, t][..., None, None]
        state = decay * state
        state = state - strength * key.unsqueeze(-1) @ (key.unsqueeze(-2) @ state)
        state = state + strength * key.unsqueeze(-1) @ v[:, t].unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1), state


def positions_of(documents: list[list[int]] | None, before: int = 0) -> Tensor | None:
    """`before`: tokens of the first documents that stand in front of the rows."""
    if documents is None:
        return None
    rows = [torch.cat([torch.arange(n) for n in row]) for row in documents]
    for row, sizes in zip(rows, documents, strict=True):
        row[: sizes[0]] += before
    return torch.stack(rows)


@pytest.mark.parametrize("documents", [None, [[5, 8], [1, 12]], [[13], [4, 9]]], ids=["whole", "several", "some"])
@pytest.mark.parametrize("size", [1, 4, 13, 64])
@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize("channels", [False, True], ids=["heads", "channels"])
def test_chunks_are_the_rule(size: int, documents: list[list[int]] | None, key_heads: int, channels: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, heads: int = 4) -> Tensor:
        return torch.randn(2, 13, heads, *shape, generator=generator, dtype=torch.float64)

    positions = positions_of(documents, before=3)
    q, k, v = random(4, heads=key_heads), torch.nn.functional.normalize(random(4, heads=key_heads), dim=-1), random(5)
    g, b = -random(*[4] * channels).abs(), random().sigmoid()
    state = torch.randn(2, 4, 4, 5, generator=generator, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v, g, b, state)]
    out, last = by_tokens(*leaves, positions)
    grad, grad_last = torch.randn_like(out), torch.randn_like(last)
    wanted = torch.autograd.grad((out, last), leaves, (grad, grad_last))
    with torch.no_grad():
        chunks = delta.in_chunks(ops, (q, k, v, g, b), positions, size)
        solved, begin, end = delta.solved(ops, chunks), state.flatten(0, 1).clone(), grad_last.flatten(0, 1).clone()
        carried = delta.carried(ops, chunks, solved)
        through, alone = carried.split((4, 5), dim=-1)
        torch.testing.assert_close(through @ begin + alone, last.flatten(0, 1), rtol=1e-11, atol=1e-11)
        found = delta.states(ops, chunks, solved, begin)
        ours = delta.output(ops, chunks, solved, found)
        cut = delta.cut(ops, grad, chunks.sizes)
        reads = delta.reads(ops, chunks, cut)
        by_output = delta.carried_back(ops, chunks, solved, reads)
        before = through.mT @ end + by_output
        at_ends = delta.ends(ops, chunks, solved, reads, end)
        torch.testing.assert_close(before, end, rtol=1e-11, atol=1e-11)
        gradients = (
            *delta.gradients(ops, chunks, solved, reads, found.begun, cut, at_ends),
            end.view(state.shape),
        )
    torch.testing.assert_close(ours, out, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.end.view(last.shape), last, rtol=1e-11, atol=1e-11)
    for name, mine, theirs in zip("qkvgbs", gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("tokens", [1, 3, 17, 64, 65, 130])
@pytest.mark.parametrize("least", [-50.0, -1e-3], ids=["strong", "weak"])
def test_channels_may_decay_as_strongly_as_they_like(tokens: int, least: float) -> None:
    """Beside channels that keep all: no factor overflows, and nothing is lost that decays little."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(1, tokens, 2, *shape, generator=generator, dtype=torch.float64)

    q, k, v = random(5) - 0.5, torch.nn.functional.normalize(random(5) - 0.5, dim=-1), random(3)
    g, b = least * random(5) * (random(5) > 0.5), random()
    leaves = [x.requires_grad_() for x in (q, k, v, g, b)]
    out, _ = by_tokens(*leaves, torch.zeros(1, 2, 5, 3, dtype=torch.float64), None)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    wanted = torch.autograd.grad(out, leaves, grad)
    with torch.no_grad():
        torch.testing.assert_close(delta.forward(ops, leaves, None), out, rtol=1e-11, atol=1e-11)
        for name, mine, theirs in zip("qkvgb", delta.backward(ops, [grad], leaves, None), wanted, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("channels", [False, True], ids=["heads", "channels"])
def test_what_strong_decays_leave_of_their_gradient_is_not_lost(channels: bool) -> None:
    """A token's pair with itself, a billion times as large, would hide it."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(1, 70, 2, *shape, generator=generator, dtype=torch.float64)

    q, k, v, b = random(5), torch.nn.functional.normalize(random(5), dim=-1), random(3), random()
    g = -20 - random(*[5] * channels)
    leaves = [x.requires_grad_() for x in (q, k, v, g, b)]
    out, _ = by_tokens(*leaves, torch.zeros(1, 2, 5, 3, dtype=torch.float64), None)
    (wanted,) = torch.autograd.grad(out.sum(), [g])
    with torch.no_grad():
        found = delta.backward(ops, [torch.ones_like(out)], leaves, None)[3]
    assert wanted.abs().max() < 1e-7
    assert ((found - wanted).norm() / wanted.norm()).item() < 1e-10
