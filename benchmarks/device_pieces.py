"""Part of `device.sh`: memory-bound pieces of an 8B Llama as the runtime computes them, and the times of other ways as a share.

    python benchmarks/device_pieces.py

Other ways: a plain formula through torch.compile, PyTorch's own operator, the Triton kernels that a run may choose, liger-kernel
where it is installed. Each must first give the same result. Without a CUDA device the same code runs on a tiny model, which
torch.compile traces and does not compile.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from device import LENGTH, ON_CUDA, SHAPES, TINY, device, reason, release, run_table, seconds
from device_record import figure, known, unmeasured
from fourfold.calibrate.steps import table_spec
from fourfold.config import ModelConfig
from fourfold.model import torch_operations
from fourfold.model.environment import Environment
from fused_pieces import Piece, dense_pieces, expert_pieces, update_piece
from fused_ways import Way, chosen, copies, formula, liger, off, operator, tensors

TOLERANCE = 0.02
"""How far a result may be off, in proportion to its norm."""


def main() -> None:
    """All pieces, one line each."""
    dense = table_spec(run_table(SHAPES["8B"] if ON_CUDA else TINY), 1, device().type).model
    experts = replace(dense, num_experts=8, top_k=2)
    pieces = [(dense, piece) for piece in dense_pieces(dense, LENGTH, ON_CUDA)]
    pieces += [(experts, piece) for piece in expert_pieces(experts, LENGTH)]
    pieces.append((dense, update_piece(2**26 if ON_CUDA else 2**10, 1)))
    for model, piece in pieces:
        if piece.name not in known():
            release()
            ways_of(model, piece)


def ways_of(model: ModelConfig, piece: Piece) -> None:
    """One line of a piece."""
    env = Environment(torch_operations, model)
    given = tensors(piece, torch.bfloat16 if ON_CUDA else torch.float32, device())
    expected, arrays = piece.run(env, copies(given)), copies(given)
    today = seconds(lambda: piece.run(env, arrays), 0.1)
    cells = [f"{piece.name}: {1e6 * today:.0f} us"]
    for name, find in ways(piece.name).items():
        try:
            way = find()
            if way is None:
                continue
            worst, arrays = off(way(copies(given)), expected), copies(given)
            if not worst < TOLERANCE:
                raise ArithmeticError(f"off by {worst:.1e}")
            cells.append(f"{name} {seconds(lambda way=way, arrays=arrays: way(arrays), 0.1) / today:.2f}")
        except Exception as error:  # whatever a compiler or a package raises must not stop the others
            unmeasured(f"{piece.name} by {name}", reason(error))
    figure(piece.name, ", ".join(cells), seconds=today)


def ways(name: str) -> dict[str, Callable[[], Way | None]]:
    """By name, what looks up another way to compute a piece."""
    own, plain = operator(name, device()), formula(name)
    backend = "inductor" if ON_CUDA else "eager"
    return {
        "torch.compile": lambda: plain and torch.compile(plain, dynamic=False, backend=backend),
        own[0] if own else "operator": lambda: own and own[1],
        "Triton": lambda: chosen(name, device()),
        "liger-kernel": lambda: liger(name),
    }


if __name__ == "__main__":
    main()
