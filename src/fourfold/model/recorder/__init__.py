"""The second backend of segments: shape-only tensors in place of tensors, which record what a pass computes, keeps, moves and
sends. No torch."""
