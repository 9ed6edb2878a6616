"""The arguments of a small model's plan, and the document that the command prints."""

import json

SMALL = (
    "--model", "llama3-8b", "--cluster", "dgx-h100:16", "--sequence-length", "8192", "--batch-sequences", "64", "--keep", "3",
)  # fmt: skip


def document(fourfold, *arguments: str) -> dict:
    result = fourfold("plan", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)
