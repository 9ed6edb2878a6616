"""Asks whether what rows state says anything more of their step times than is predicted: a learner of boosted trees is given all of
it, and the errors with the source left out, and predicts those of sources that it has not seen.

    pip install scikit-learn
    python benchmarks/published/unexplained.py DIR... --timed timed.npz [--groups 8]

`--timed`: rows that `look.py` looked at. Prints errors as they are, less all and less half of what the learner predicts of them,
and, as a bound, less the median of their own source."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from case import PublishedCase
from fit_constants import Model, say_errors
from fit_file import PRIOR, read
from fit_rows import TimedRows
from fit_sample import telling
from fit_table import Numbers, weights_of
from fourfold.cost.fitted import framework_of
from row_command import cases_of, row_parser, rows_or_exit

NUMBERS = ("tp", "pp", "cp", "ep", "dp", "zero", "microbatch_sequences", "num_microbatches", "virtual_stages")
"""Keys of a layout."""
SIZES = ("num_layers", "hidden_size", "num_experts", "top_k")
"""Keys of a model."""


def stated(case: PublishedCase) -> dict[str, float]:
    """Keys and words that a case states: numbers by the logarithm of one more, words as the number 1 of a name of their own."""
    layout, model, network = case.layout, case.model, case.network
    numbers: dict[str, Any] = {
        **{name: getattr(layout, name) for name in NUMBERS},
        **{name: getattr(model, name) for name in SIZES},
        "devices": case.num_devices,
        "tokens of a sequence": case.sequence_length,
        "sequences": case.global_sequences,
        "bytes a second": network.internode_bytes_per_second,
        "domain": network.nvlink_domain,
        "network assumed": network.assumed,
        "sequence parallel": layout.sequence_parallel,
        "left open": case.recompute_open + case.microbatch_open + case.zero_open,
        "from memory": len(case.from_memory),
        "filled in": len(case.defaults),
    }
    words = {
        "software": case.software,
        "family": framework_of(case.software),
        "device": case.device,
        "format": case.precision.name,
        "recompute": layout.recompute,
        "figure": str(case.measured.step_from),
    }
    return {name: float(np.log1p(each or 0)) for name, each in numbers.items()} | {
        f"{key} {word}": 1.0 for key, word in words.items()
    }


def table_of(cases: list[PublishedCase]) -> Numbers:
    """[case, name]: what every case states, 0 where it does not."""
    rows = [stated(case) for case in cases]
    names = sorted({name for row in rows for name in row})
    return np.array([[row.get(name, 0.0) for name in names] for row in rows])


def own_median_removed(errors: Numbers, sources: Numbers) -> Numbers:
    """Errors without the median of their own source, which nobody knows beforehand."""
    left = errors.copy()
    for source in set(sources):
        left[sources == source] -= np.median(errors[sources == source])
    return left


def learned(cases: list[PublishedCase], errors: Numbers, sources: Numbers, groups: int) -> Numbers:
    """The errors that the learner expects of each row, which has seen no row of its source."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import GroupKFold

    table, weights, found = table_of(cases), weights_of(cases) ** 2, np.zeros(len(errors))
    for known, unseen in GroupKFold(groups).split(table, errors, sources):
        trees = HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=120,
            learning_rate=0.04,
            max_depth=4,
            min_samples_leaf=15,
            l2_regularization=5,
            random_state=7,
        )
        trees.fit(table[known], errors[known], sample_weight=weights[known])
        found[unseen] = trees.predict(table[unseen])
    return found


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--timed", type=Path, required=True)
    parser.add_argument("--groups", type=int, default=8)
    options = parser.parse_args()
    if find_spec("sklearn") is None:
        parser.error("scikit-learn is not installed; what works: pip install scikit-learn")
    timed = TimedRows.load(options.timed, telling(cases_of(rows_or_exit(parser, options.folders))))
    model = Model.of([timed], read(PRIOR))
    errors = model.left_out_errors(timed.errors, lambda case: case.file)
    sources = np.array([case.file for case in timed.cases])
    expected = learned(timed.cases, errors, sources, options.groups)
    say_errors("source left out", errors)
    say_errors("less what the learner predicts", errors - expected)
    say_errors("less half of that", errors - expected / 2)
    say_errors("less the median of the own source", own_median_removed(errors, sources))


if __name__ == "__main__":
    main()
