"""Answers of the page's server, given in the browser: its own documents, without sockets, processes and folders.

`page/src/engine/worker.ts` calls `answer` in a worker, where Python is compiled to WebAssembly.
"""

import json

from fourfold.config import UserError
from fourfold.explore.documents import DOCUMENTS, Report, encoded
from fourfold.explore.refusals import REFUSED, as_fault, refusal_of
from fourfold.explore.setup import Malformed

OF_A_RUN = ("run", "metrics", "layers", "comparison")
"""Documents of a run's folder, which only a server reads."""
BOARD_RUN = "board_run"
"""The document for which a server trains the board."""


def answer(name: str, request: str, report: Report) -> tuple[int, str]:
    """A status of HTTP, and the JSON that `/api/NAME` of the server gives to this request. `report`: told how far a search is."""
    try:
        if name in OF_A_RUN:
            raise UserError(
                "a run's folder is read by a server on the machine that has it, and this page is computed in your browser; "
                "what works: fourfold explore RUN, with the folder of a run, for example runs/first"
            )
        if name == BOARD_RUN:
            raise UserError(
                "a browser trains nothing; what works: fourfold explore on a machine of your own, or Save, and fourfold train with "
                "that file"
            )
        if name not in DOCUMENTS:
            raise Malformed(f"{name}: there is no such document; allowed: {', '.join(DOCUMENTS)}")
        return 200, encoded(name, json.loads(request), report).decode()
    except Exception as error:
        known = error if isinstance(error, REFUSED) else as_fault(error)
        status, message = refusal_of(known)
        return status, json.dumps(message)
