"""The work of a search, counted and not timed: the same request gives the same answer on every machine, however busy it is.

One unit is about a second of one core: the constants are seconds that were measured on a server of 2024. `SHARES` is the one table
of what may be spent on what.
"""

from dataclasses import dataclass

BUDGET = 40.0
"""Units of work of a plan, where nobody says otherwise."""
FLOOR, SHARPER, SHAPE, ROW = 5e-4, 2e-3, 6e-3, 1e-6
"""A floor of shapes of a replica, the sharper one of a shape, its bounds, and those of each layout around it."""
TIMELINE, COMPUTE = 2e-3, 7e-6
"""A schedule's timeline, and each stage's microbatch in it."""
SIMULATION, INSTRUCTION = 0.02, 6e-6
"""A simulated layout, and each instruction of its programs."""
MEMORY = 0.5
"""Share of a simulation that its memory alone takes."""


@dataclass(frozen=True)
class BudgetShares:
    """Shares of a plan's budget that its parts take at most. A search has what the baseline leaves; its own shares are of that."""

    baseline: float = 0.15
    """The heuristic baseline."""
    bounds: float = 2 / 3
    """In a search: the bounds of all layouts."""
    ranking: tuple[float, float, float] = (0.5, 0.2, 0.1)
    """The queue of layouts: while nothing was found to fit, once something was, once the best is known."""
    climb: float = 0.5
    """All climbs from the best."""
    overlap: float = 0.03
    """Layouts with all-to-alls of experts behind another microbatch."""
    settling: float = 0.05
    """Layouts that others of the same degrees stood for."""
    less_memory: float = 0.05
    """Each look for a layout that holds less."""
    riskier: float = 0.05
    """The look for a faster layout that is less likely to fit."""
    explained: float = 0.25
    """Beside the budget: each explanation."""
    advice: float = 0.02
    """Beside it: changes of the best layout."""
    size: float = 1 / 8
    """Beside it: each number of devices, length or width that an objective tries."""
    enough: float = 0.1
    """Beside it: each larger number of devices, where nothing fits."""


SHARES = BudgetShares()


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

    def part(self, share: float = 1.0) -> "SearchBudget":
        """A budget of its own: this share of the whole limit, and no more than is left."""
        return SearchBudget(max(0.0, min(share * self.limit, self.limit - self.spent)), parent=self)
