"""Every way we know to break the programs of a step, at every place where it applies: by name, in two tables."""

from tests.support.program_mutations import (  # noqa: F401 (each fills the tables)
    any_instruction,
    checks,
    computation,
    data_parallel,
    exchanges,
    halves_and_ties,
    matrices,
    offloads,
    split_layers,
    stages,
    sums_over_ranks,
    transfers,
)
from tests.support.program_mutations.edits import MUTATIONS, PIPELINE_MUTATIONS, Mutant

__all__ = ["MUTATIONS", "PIPELINE_MUTATIONS", "Mutant"]
