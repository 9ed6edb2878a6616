"""Keeps a run going: watches its ranks, names the one at fault, starts them again from the newest state."""
