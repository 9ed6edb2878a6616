"""`fourfold list`: what can be named on the command line and in a run file."""

import json as json_text
from typing import Annotated

from cyclopts import Parameter

from fourfold.report.listing import Kind, listing_lines, rows

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def list_(what: Kind, /, *, json: Flag = False) -> int:
    """List models, clusters, devices, software, presets (runs of the literature) or schedules, with the facts one chooses by.

    Parameters
    ----------
    what
        models, clusters, devices, software, presets or schedules.
    json
        Print one JSON document and nothing else: every fact, units in the keys.
    """
    print(json_text.dumps({what: rows(what)}, indent=1) if json else "\n".join(listing_lines(what)))
    return 0
