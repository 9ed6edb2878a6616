"""The search over layouts: bounds of all, simulation of the promising, and why the others lost. No torch.

The package is callable: `fourfold.plan(...)` is `fourfold.api.planning.plan`.
"""

from fourfold.callable_package import make_callable

make_callable(__name__, "fourfold.api.planning")
