"""`fourfold data`: prepares the corpus of a run and says what is in it."""

import json as json_text
import sys
from pathlib import Path

from fourfold.cli.options import Json
from fourfold.config import load_run


def data(run: Path, /, *overrides: str, json: Json = False) -> int:
    """Prepare the data of a run, and print what they are: files, documents, tokens, entropy, an excerpt.

    Prepared data is found again; fourfold train prepares by itself.

    Parameters
    ----------
    run
        A run file.
    overrides
        Keys of the run file, as section.key=value, for example data.corpus=texts data.tokenizer=bpe:8192.
    """
    from fourfold.data.prepare import prepare
    from fourfold.report.corpus import corpus_lines, corpus_summary
    from fourfold.report.display import preparing

    config = load_run(run, overrides)
    if json:
        summary = corpus_summary(prepare(config.data, lambda text: print(text, file=sys.stderr)))
        print(json_text.dumps(summary, indent=1, ensure_ascii=False))
        return 0
    with preparing("reading the corpus") as report:
        prepared = prepare(config.data, report)
    print("\n".join(corpus_lines(corpus_summary(prepared))))
    return 0
