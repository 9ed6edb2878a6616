"""Starts ranks and watches them: what a run needs before, while and after its processes live."""
