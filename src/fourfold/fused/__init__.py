"""Memory-bound parts of a step in few kernels: RMSNorm, and cross-entropy with the gradient of the logits in their place."""
