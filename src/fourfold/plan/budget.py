"""The work of a search, counted and not timed: the same request gives the same answer on every machine, however busy it is.

One unit is about a second of one core: the constants are seconds that were measured on a server of 2024.
"""

from dataclasses import dataclass

FLOOR, SHARPER, SHAPE, ROW = 5e-4, 2e-3, 6e-3, 1e-6
"""A floor of shapes of a replica, the sharper one of a shape, its bounds, and those of each layout around it."""
TIMELINE, COMPUTE = 2e-3, 7e-6
"""A schedule's timeline, and each stage's microbatch in it."""
SIMULATION, INSTRUCTION = 0.02, 6e-6
"""A simulated layout, and each instruction of its programs."""
MEMORY = 0.5
"""Share of a simulation that its memory alone takes."""


@dataclass
class SearchBudget:
    """`limit` units, of which `spent` are spent; `parent` is told of what is spent here."""

    limit: float
    spent: float = 0.0
    parent: "SearchBudget | None" = None

    @property
    def is_spent(self) -> bool:
        """Whether all units are spent."""
        return self.spent >= self.limit

    def spend(self, units: float) -> None:
        """Spends `units` of work, here and in every budget that this one is a part of."""
        self.spent += units
        if self.parent is not None:
            self.parent.spend(units)

    def part(self, share: float) -> "SearchBudget":
        """A budget of its own: this share of the whole limit, and no more than is left."""
        return SearchBudget(max(0.0, min(share * self.limit, self.limit - self.spent)), parent=self)
