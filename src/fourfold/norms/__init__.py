"""RMSNorm in few kernels: forward in one, backward in one for the input and a small one for the weight."""
