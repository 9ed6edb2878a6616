"""The gated delta rule in chunks is the rule token by token, and its backward is autograd's."""

import pytest
import torch
from torch import Tensor

from fourfold.model import delta


def by_tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, state: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(q.shape[1]):
        decay = g[:, t].exp()[..., None, None]
        if documents is not None and t:
            decay = decay * (documents[:, t] == documents[:, t - 1])[:, None, None, None]
        key, strength = k[:, t], b[:, t][..., None, None]
        state = decay * state
        state = state - strength * key.unsqueeze(-1) @ (key.unsqueeze(-2) @ state)
        state = state + strength * key.unsqueeze(-1) @ v[:, t].unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("documents", [None, [[5, 8], [1, 12]], [[13], [4, 9]]], ids=["whole", "several", "some"])
@pytest.mark.parametrize("size", [1, 4, 13, 64])
def test_chunks_are_the_rule(size: int, documents: list[list[int]] | None) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(2, 13, 3, *shape, generator=generator, dtype=torch.float64)

    number = (
        None
        if documents is None
        else torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in documents])
    )
    q, k, v = random(4), torch.nn.functional.normalize(random(4), dim=-1), random(5)
    g, b = -random().abs(), random().sigmoid()
    state = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v, g, b, state)]
    out, last = by_tokens(*leaves, number)
    grad, grad_last = torch.randn_like(out), torch.randn_like(last)
    wanted = torch.autograd.grad((out, last), leaves, (grad, grad_last))
    with torch.no_grad():
        chunks = delta.in_chunks(q, k, v, g, b, number, size)
        ours, end, begun, u = delta.forward(chunks, state)
        found = delta.backward(chunks, grad, grad_last, begun, u)
    torch.testing.assert_close(ours, out, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(end, last, rtol=1e-11, atol=1e-11)
    for name, mine, theirs in zip("qkvgbs", found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
