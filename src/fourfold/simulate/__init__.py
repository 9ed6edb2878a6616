"""Prices a program: its timeline, memory, communication, critical path. No torch.

The package is callable: `fourfold.simulate(...)` is `fourfold.api.simulation.simulate`.
"""

from fourfold.callable_package import make_callable

make_callable(__name__, "fourfold.api.simulation")
