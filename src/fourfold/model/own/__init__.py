"""A person's own block: its forward as an ordinary torch function, its parameters declared. The rest is derived.

Backward is autograd's; bytes and work come from one trace on tensors without data. `OwnBlock` is what a module declares.
"""

from fourfold.model.own.declare import OwnBlock, OwnInputs, OwnParameter

__all__ = ["OwnBlock", "OwnInputs", "OwnParameter"]
