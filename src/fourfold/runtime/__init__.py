"""Executes programs on torch.distributed: collectives, units, the interpreter, the training loop."""
