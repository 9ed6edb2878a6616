"""Causal attention over a sequence that may be split across ranks: ring, gathered keys, head exchange (Ulysses)."""
