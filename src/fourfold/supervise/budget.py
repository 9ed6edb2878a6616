"""How often a run is started again: as long as it gets on, and three times where it does not."""

from dataclasses import dataclass

from fourfold.config.schema import FaultsSection


@dataclass
class RestartBudget:
    """Counts failures since the last progress.

    A fault that recurs at one step is the run's own: after `faults.attempts` failures in a row there, the run stops. Failures at
    changing steps come from outside, and the run may always be started again if a newer checkpoint was saved since; without
    one `faults.restarts` times in a row.
    """

    faults: FaultsSection
    first_cause: str = ""
    """Message of the first failure at this step; later ones may be its echoes."""
    at_step: int | None = 0
    """The step at which the run fails; None while its ranks start."""
    failures: int = 0
    """In a row at one step."""
    since_saved: int = 0
    """Restarts since the newest checkpoint."""
    _saved: int | None = None

    def allows(self, step: int | None, saved: int, message: str) -> bool:
        """Counts a failure at `step`, or while ranks start (None); whether the run may start again. `saved`: step of the newest
        checkpoint, 0 for none."""
        same = self.failures > 0 and step == self.at_step
        self.failures = self.failures + 1 if same else 1
        self.first_cause = self.first_cause if same else message
        self.at_step = step
        self.since_saved = self.since_saved + 1 if saved == self._saved else 1
        self._saved = saved
        return self.failures < self.faults.attempts and self.since_saved <= self.faults.restarts

    def forget(self) -> None:
        """The failures so far had a cause that is gone."""
        self.failures = self.since_saved = 0

    def why_stopped(self, message: str) -> str:
        """The first cause, and how often it was tried; for a failure that was not repeated its own message alone."""
        if self.failures >= self.faults.attempts > 1:
            again = "" if message == self.first_cause else f"; the last time: {message.splitlines()[0]}"
            where = "while it started" if self.at_step is None else f"at step {self.at_step}"
            return (
                f"{self.first_cause}\nthe run failed {where} {self.failures} times in a row and was not started "
                f"again (faults.attempts = {self.faults.attempts}){again}"
            )
        if self.since_saved > self.faults.restarts > 0:
            return (
                f"{message}\nthe run was started again {self.faults.restarts} times without a newer checkpoint (faults.restarts); "
                f"what helps: checkpoint.every_steps smaller than the steps between two failures"
            )
        return message
