"""`fourfold list`: what can be named on the command line and in a run file."""

from fourfold.cli.options import Flag, print_answer
from fourfold.report.listing import Kind, listing_lines, rows


def list_(what: Kind, /, *, json: Flag = False) -> int:
    """List models, clusters, devices, software, presets (runs of the literature) or schedules, with the facts one chooses by.

    Parameters
    ----------
    what
        models, clusters, devices, software, presets or schedules.
    json
        Print one JSON document and nothing else: every fact, units in the keys.
    """
    return print_answer(json, lambda: {what: rows(what)}, lambda: listing_lines(what))
