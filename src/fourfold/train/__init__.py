"""The training loop of one rank: data in, steps, evaluation, checkpoints, metrics; and sampling from what was trained."""
