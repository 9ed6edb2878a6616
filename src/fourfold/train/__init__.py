"""The training loop of one rank: data in, steps, evaluation, checkpoints, metrics; and sampling from what was trained.

The package is callable: `fourfold.train(...)` is `fourfold.api.training.train`.
"""

from fourfold.callable_package import make_callable

make_callable(__name__, "fourfold.api.training")
