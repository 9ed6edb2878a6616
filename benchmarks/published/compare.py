"""Joins rows, cases and a predictor: `validate` is the whole comparison."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from case import PublishedCase, SettledPrediction, Skip
from fourfold.config import UserError
from fourfold.validate import refusal_of
from normalise import normalise
from outcome import PublishedOutcome, RowOutcome, SourceSummary, predicted_row, skipped_row
from pairs import measure_published
from row import Row, Unread

Predict = Callable[[PublishedCase], SettledPrediction]
Progress = Callable[[int, int], None]
Each = Callable[[Callable[[PublishedCase], SettledPrediction], Sequence[PublishedCase]], Iterable[SettledPrediction]]


def validate(
    rows: Sequence[Row],
    predict: Predict,
    progress: Progress | None = None,
    unread: Iterable[Unread] = (),
    each: Each = map,
) -> PublishedOutcome:
    """Predicts each row from its configuration alone and compares. `progress(done, total)` is called after each row. `each`: what
    runs a function on every case, in order: `map`, or that of a pool of processes.

    A predictor that raises `UserError` has refused; its message is the row's reason. One that fails otherwise has none to give:
    the row's reason is the error, so that no row ends the run.
    """
    outcomes: list[RowOutcome] = []
    judged: list[tuple[PublishedCase, SettledPrediction]] = []
    cases = [normalise(row) for row in rows]
    predictions = iter(
        each(partial(_checked, predict=predict), [case for case in cases if isinstance(case, PublishedCase)])
    )
    for index, (row, case) in enumerate(zip(rows, cases, strict=True)):
        if isinstance(case, Skip):
            outcomes.append(skipped_row(row, case.reason))
        else:
            prediction = next(predictions)
            outcomes.append(predicted_row(case, prediction))
            judged.append((case, prediction))
        if progress is not None:
            progress(index + 1, len(rows))
    files = dict.fromkeys(row.file for row in rows)
    by_row: dict[str, list[RowOutcome]] = defaultdict(list)
    by_case: dict[str, list[tuple[PublishedCase, SettledPrediction]]] = defaultdict(list)
    for outcome in outcomes:
        by_row[outcome.file].append(outcome)
    for case, prediction in judged:
        by_case[case.file].append((case, prediction))
    return PublishedOutcome(
        rows=tuple(outcomes),
        by_source={file: _summary(by_row[file], by_case[file]) for file in files},
        overall=_summary(outcomes, judged),
        unread=tuple(unread),
    )


def _checked(case: PublishedCase, predict: Predict) -> SettledPrediction:
    try:
        prediction = predict(case)
    except UserError as error:
        return SettledPrediction(refused=str(error))
    except Exception as error:
        return SettledPrediction(refused=f"the simulator fails on this layout: {type(error).__name__}: {error}"[:300])
    reason = refusal_of(prediction)
    return prediction if reason is None else SettledPrediction(refused=reason)


def _summary(rows: Sequence[RowOutcome], judged: Sequence[tuple[PublishedCase, SettledPrediction]]) -> SourceSummary:
    reasons = Counter(row.skipped for row in rows if row.skipped is not None)
    return SourceSummary(
        rows=len(rows),
        cases=len(judged),
        predicted=sum(p.refused is None for _, p in judged),
        skipped=dict(reasons.most_common()),
        metrics=measure_published([c for c, _ in judged], [p for _, p in judged]),
    )
