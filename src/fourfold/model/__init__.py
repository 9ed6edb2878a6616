"""Segments: what a model is made of. Shapes, footprints and arithmetic need no torch; the functions themselves do."""
