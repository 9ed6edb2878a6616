"""`fourfold validate`: measured runs, stated as cases or left behind as folders, beside their predictions."""

import json as json_text
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fourfold.cli.cases import cases_of
from fourfold.config import UserError
from fourfold.report.format_validation import validation_lines
from fourfold.simulate.collection import without_collection
from fourfold.validate import checked_prediction
from fourfold.validate import validate as compare

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@without_collection()
def validate(*paths: Path, cluster: str | None = None, json: Flag = False) -> int:
    """Predict runs that were measured and compare: errors of step time and memory, order of layouts, regret.

    Cases are stated in the run file's words, each with its cluster, its software and what was measured; examples/cases.toml shows
    how. Several layouts of one model, cluster and batch are ranked against each other. `presets` names the runs of the literature
    that ship: each is compared with its published figure.

    Parameters
    ----------
    paths
        Files of [[case]] tables, folders of runs that fourfold trained, `presets`, or preset:NAME.
    cluster
        Predict the runs of the folders on this cluster: NAME, NAME:DEVICES or a cluster file. Default: each run's own.
    json
        Print one JSON document and nothing else.
    """
    if not paths:
        raise UserError(
            "no case is given; what works: fourfold validate examples/cases.toml, the folder of a run, or presets"
        )
    found = compare([case for path in paths for case in cases_of(path, cluster)], checked_prediction)
    print(json_text.dumps(found.to_json(), indent=1, allow_nan=False) if json else "\n".join(validation_lines(found)))
    return 0 if any(outcome.prediction.refused is None for outcome in found.outcomes) else 1
