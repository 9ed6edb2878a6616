"""Corpus to tokens to memory-mapped shards to global batches. Numpy arrays out; no torch."""
