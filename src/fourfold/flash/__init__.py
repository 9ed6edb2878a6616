"""Exact attention by tiles, in memory that grows with the sequence and not with its square (Dao et al. 2022, Dao 2023).

`visible` says which keys a query sees, and so which tiles are computed. `tiled` is the algorithm in plain PyTorch, `triton_kernels`
the same algorithm as kernels, which `triton_attention` launches. `backends` has both beside the kernels of libraries, and `choice`
takes the fastest that is right.
"""
