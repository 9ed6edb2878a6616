"""The schemas that `tools.job_schemas` recorded, and what a document does against them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool}


def recorded(kind: str) -> dict[str, Any]:
    """The schema of a `trainjob` or a `skypilot` task."""
    return json.loads((Path(__file__).parent / f"{kind}.json").read_text(encoding="utf-8"))["schema"]


def faults(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """One text a fault, which begins with the place."""
    if "anyOf" in schema:
        each = [list(faults(one, value, where)) for one in schema["anyOf"]]
        if all(each):
            yield from each[0]
        return
    kind = schema.get("type")
    if kind == "null" or (kind and (not isinstance(value, _TYPES[kind]) or (kind != "boolean" and value is True))):
        yield f"{where}: {value!r} is no {kind}"
        return
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: {value!r} does not match {schema['pattern']}"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{where}: longer than {schema['maxLength']}"
    if isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            yield from faults(schema["items"], inner, f"{where}[{index}]")
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        yield from (f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value)
        for name, inner in value.items():
            if name in known:
                yield from faults(known[name], inner, f"{where}.{name}")
            elif more is False:
                yield f"{where}: unknown field {name}"
            elif isinstance(more, dict):
                yield from faults(more, inner, f"{where}.{name}")
