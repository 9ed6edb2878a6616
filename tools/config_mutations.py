"""Changes every key of a `config.json`, one at a time, and compares import with transformers: `python -m tools.config_mutations`.

    python -m tools.config_mutations --results FILE              # all families; goes on where it was stopped
    python -m tools.config_mutations --results FILE --base qwen2 # one of them
    python -m tools.config_mutations --results FILE --every 7    # each seventh case

The law (`tests/support/config_mutations.py`): either both have the same loss, or import refuses and names the key. The exit code
is 1 where a case breaks it.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path


def main() -> int:
    """Runs what the results file does not hold yet, then prints the breaches and a count of each verdict."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.update(TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1", HF_HUB_OFFLINE="1")
    warnings.filterwarnings("ignore")
    from tests.support.config_mutations import Verdict, cases, exact_norms, judge, write_base
    from tests.support.config_values import BASES

    parser = argparse.ArgumentParser(prog="python -m tools.config_mutations")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--base", choices=list(BASES), action="append")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, Verdict] = {}
    if options.results.exists():
        for line in options.results.read_text().splitlines():
            name, *verdict = json.loads(line)
            found[name] = Verdict(*verdict)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with exact_norms(), open(options.results, "a") as results:
        for base in options.base or BASES:
            with tempfile.TemporaryDirectory() as folder:
                raw = write_base(base, Path(folder))
                for case in cases(base, raw)[:: options.every]:
                    if case.name in found:
                        continue
                    verdict = judge(case, Path(folder), raw)
                    found[case.name] = verdict
                    results.write(json.dumps([case.name, verdict.kind, verdict.words]) + "\n")
                    results.flush()
    breaches = {name: verdict for name, verdict in found.items() if not verdict.holds}
    for name, verdict in breaches.items():
        print(f"{verdict.kind}: {name}: {verdict.words[:300]}")
    print(", ".join(f"{count} {kind}" for kind, count in Counter(v.kind for v in found.values()).most_common()))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
