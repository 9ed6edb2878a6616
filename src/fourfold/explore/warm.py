"""Imported by the process that workers are forks of: it computes what a first answer computes once, such as fits and tables."""

from fourfold.explore.documents import encoded

_START = {
    "overrides": {
        "model.preset": "llama3.1-8b",
        "batch.global_sequences": 64,
        "batch.sequence_length": 8192,
        "precision.compute": "bf16",
        "layout.zero": 3,
        "layout.tp": 2,
        "layout.recompute": "selective",
    },
    "cluster": "dgx-h100:8",
    "tokens": "15T",
    "price": "2.5",
    "failure_hours": "50k",
}
_COLLECTIVE = {"cluster": "dgx-h100", "kind": "all_reduce", "ranks": 8, "per_node": 4, "buffer_bytes": 1e9}
for _name, _body in (("catalog", {}), ("simulate", _START), ("pipeline", _START), ("collective", _COLLECTIVE)):
    encoded(_name, _body, lambda *_: None)
