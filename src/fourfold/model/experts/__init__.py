"""The routed feed-forward half of a block: router, dispatch to experts on other ranks, their products, the way back, balancing.

`cost.py` declares its bytes and arithmetic without torch; everything else needs it.
"""
