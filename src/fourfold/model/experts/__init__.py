"""The routed feed-forward half of a block: router, dispatch to experts on other ranks, their matmuls, the way back, balancing."""
