"""Rehearses a run without its devices: every class of ranks runs a step on tensors that have no data, as if on CUDA."""
