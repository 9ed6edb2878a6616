"""Kernels that may compute parts of a step in the place of the model's formulas, and the choice among them when a run starts.

A kind of kernel is one file or folder: its case (a run's shapes), its back ends, its check beside fp64, the call that is timed.
`kinds` lists the kinds; `choose` chooses for any of them. A back end is an entry in its kind's `BACKENDS`.
"""
