"""The package under the `sum` of Python 3.12 and newer, which keeps what each addition rounds off (Neumaier 1974).

python -m tests.support.newer_sum WORDS        the command
python -m tests.support.newer_sum documents    documents of the page, for the requests [name, body] on standard input
"""

import builtins
import json
import math
import sys
from collections.abc import Iterable
from typing import Any

_plain_sum = sum


def compensated_sum(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    """Follows CPython 3.14: from the first fraction on with what was rounded off, until something else comes."""
    found, lost, left = start, 0.0, iter(numbers)
    for each in left:
        if type(found) is float and type(each) is float:
            total = found + each
            lost += (found - total) + each if abs(found) >= abs(each) else (each - total) + found
            found = total
        elif type(found) is float and type(each) in (int, bool):
            found += float(each)
        elif type(found) in (int, bool, float) and type(each) in (int, bool, float):
            found = found + each
        else:
            return _plain_sum(left, start=(found + lost if lost and math.isfinite(lost) else found) + each)
    return found + lost if lost and math.isfinite(lost) else found


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        builtins.sum = compensated_sum  # type: ignore[assignment]
    if sys.argv[1:] == ["documents"]:
        from fourfold.explore.documents import encoded

        requests = json.load(sys.stdin)
        json.dump([json.loads(encoded(name, body, lambda *_: None)) for name, body in requests], sys.stdout)
    else:
        from fourfold.cli import main

        sys.exit(main())
