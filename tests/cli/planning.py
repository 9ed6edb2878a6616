"""The arguments of a small model's plan, and what the command prints."""

import json

ASKED = ("--model", "llama3-8b", "--cluster", "dgx-h100:16", "--sequence-length", "8192", "--batch-sequences", "64")
SMALL = (*ASKED, "--budget", "1", "--keep", "3")
"""`ASKED` with a search of half the work."""
DECIDED = (
    "data.corpus=/shared/text",
    "data.tokenizer=/shared/tokenizer.json",
    "optimizer.lr=3e-4",
    "optimizer.warmup_steps=100",
)
"""Keys that a run of such a model has to state before it is submitted."""
_ASKED: dict[tuple[str, ...], str] = {}


def document(fourfold, *arguments: str) -> dict:
    """The document that `fourfold plan` prints."""
    return json.loads(text(fourfold, *arguments, "--json"))


def text(fourfold, *arguments: str) -> str:
    """The output of `fourfold plan --verbose`. A question that names no file is asked once: the answer depends on its words."""
    is_about_files = any(each.endswith((".toml", ".json")) or each == "--out" or "/" in each for each in arguments)
    if is_about_files or arguments not in _ASKED:
        result = fourfold("plan", *arguments, *(() if "--json" in arguments else ("--verbose",)))
        assert result.code == 0, result.err
        if is_about_files:
            return result.out
        _ASKED[arguments] = result.out
    return _ASKED[arguments]
