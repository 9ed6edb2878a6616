"""The first tensor that was not finite when it was written is named, whichever rank has it."""

from types import SimpleNamespace
from typing import Any

from fourfold.program.instruction import Op
from fourfold.runtime.first_bad_tensor import FirstBadTensor


def test_instructions_are_ordered_as_one_rank_without_a_pipeline_would_run_them() -> None:
    segments = ("embed", "b0", "b1", "head")
    spec = SimpleNamespace(segments=[SimpleNamespace(name=name) for name in segments])
    executor: Any = SimpleNamespace(view=SimpleNamespace(spec=spec), units={})
    finder = FirstBadTensor(executor)
    order = [
        finder._order(step)
        for microbatch in range(3)
        for op, names in ((Op.FORWARD, segments), (Op.BACKWARD, segments[::-1]))
        for name in names
        if (step := SimpleNamespace(op=op, segment=name, microbatch=microbatch))  # type: ignore[arg-type]
    ]
    assert order == sorted(set(order))
    assert order[0] > 0
