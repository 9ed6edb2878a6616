"""Matmuls in fp32 on a processor: PyTorch's own library, or oneDNN."""
