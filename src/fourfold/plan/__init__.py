"""The search over layouts: bounds of all, simulation of the promising, and why the others lost. No torch."""
