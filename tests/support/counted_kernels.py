"""Kernels in the formulas' place that say what they move: each array that they are given once, each that they make or change
once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from tests.support.torch_rank import StartedCollectives

PROGRAMS = 256
"""The programs of a norm's backward, each of which writes a part of the weight's gradient in the format of sums."""


class CountedKernels:
    """Kernels whose calls add one launch and its bytes to the log's count, in place of those of the formulas that they are here."""

    def __init__(self, kernels: Any, log: StartedCollectives) -> None:
        self._kernels, self._log = kernels, log

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._kernels, name)

        def counted(*given: Any) -> Any:
            if _get_current_dispatch_mode() is not self._log.kernels:  # nobody counts this pass
                return function(*given)
            with self._log.kernels.paused():
                if name == "backward":  # the formula may overwrite its gradient, the kernel does not
                    given = (given[0].clone(), *given[1:])
                arrays = [each for each in given if isinstance(each, Tensor)]
                before = [each.clone() for each in arrays]
                result = function(*given)
                changed = [new for old, new in zip(before, arrays, strict=True) if not torch.equal(old, new)]
                if name == "backward":
                    changed = []
                if name == "rotate_into":  # where it writes, it does not read
                    del arrays[1]
            made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
            self._log.kernels.trace.append((name, sum(map(_bytes, [*arrays, *changed, *made]))))
            if name == "backward":
                rows = len(given[0])
                parts = -(-rows // -(-rows // PROGRAMS))
                self._log.kernels.trace.append(("sum of parts", 2 * parts * _bytes(made[1])))
            return result

        return counted


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()
