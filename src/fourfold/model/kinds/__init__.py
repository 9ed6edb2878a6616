"""Kinds of mixers and feed-forwards: one file each, which states its fields, its parameters, its forward and its backward."""
