"""Records what a TrainJob and a SkyPilot task may hold: names, types and bounds of the fields beside those that fourfold writes.

    python -m tools.job_schemas trainjob CRD.yaml SOURCE       CRD.yaml: manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of
                                                               github.com/kubeflow/trainer; SOURCE: its version and commit
    python -m tools.job_schemas skypilot SCHEMAS.json SOURCE   SCHEMAS.json: {"task": ..., "resources": ...}, as get_task_schema and
                                                               get_resources_schema of SkyPilot's sky.utils.schemas return them

Writes tests/jobs/trainjob.json or tests/jobs/skypilot.json, which the writers' tests read. Left out: descriptions, and what lies
below fields that fourfold does not write.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fourfold.jobs import TARGETS, Job, Site

ROOT = Path(__file__).resolve().parent.parent / "tests" / "jobs"
_KEPT = ("type", "required", "pattern", "enum", "minimum", "maximum", "maxLength", "maxItems", "maxProperties")
_JOB = Job("x", "fourfold", "/run.toml", ("a.b=1",), "a\n", "/shared", 2, 8, "h100-sxm")
_SITE = Site(image="i", storage="s", namespace="n", infra="k8s", accelerator="H100")
_ANY_NUMBER = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def main(kind: str, path: str, source: str) -> None:
    text = Path(path).read_text(encoding="utf-8")
    if kind == "trainjob":
        (version,) = (each for each in yaml.safe_load(text)["spec"]["versions"] if each["storage"])
        schema, as_ = version["schema"]["openAPIV3Schema"], "k8s"
    else:
        tables = json.loads(text)
        schema, as_ = tables["task"], "skypilot"
        schema["properties"]["resources"] = tables["resources"]
    written = TARGETS[as_].write(_JOB, _SITE)
    names = {name for document in yaml.safe_load_all(written) for name in _names(document)}
    record = {"source": source, "schema": _pruned(schema, names)}
    (ROOT / f"{kind}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _names(value: Any) -> Iterator[str]:
    """The keys of a document, at any depth."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(inner)


def _pruned(schema: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The schema without prose; a property that is not among `names` keeps its type alone."""
    if schema.get("x-kubernetes-int-or-string"):
        return dict(_ANY_NUMBER)
    kept = {key: schema[key] for key in _KEPT if schema.get(key)}
    properties = schema.get("properties")
    if properties:
        kept["properties"] = {
            name: _pruned(inner, names) if name in names else {"type": inner["type"]} if "type" in inner else {}
            for name, inner in properties.items()
        }
    more = schema.get("additionalProperties", not properties)
    if more is not True:
        kept["additionalProperties"] = _pruned(more, names) if isinstance(more, dict) else False
    if "items" in schema:
        kept["items"] = _pruned(schema["items"], names)
    if "anyOf" in schema:
        kept["anyOf"] = [_pruned(each, names) for each in schema["anyOf"]]
    return kept


if __name__ == "__main__":
    main(*sys.argv[1:])
