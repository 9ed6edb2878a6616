"""Ways to break the runtime on purpose: each a context in which one handler or one collective does something wrong."""

from tests.support.runtime_mutants import (  # noqa: F401 (each fills the table)
    context_parallel,
    experts,
    gradients,
    loss_and_update,
    pipelines,
    tensor_parallel,
)
from tests.support.runtime_mutants.edits import MUTANTS

__all__ = ["MUTANTS"]
