"""fourfold plans, runs and shows the pretraining of large language models.

One training step of one rank is an explicit program: executed, priced, verified and drawn from one object.
"""

__version__ = "0.1.0"
