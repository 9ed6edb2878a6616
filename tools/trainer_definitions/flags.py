"""Flags of a command line: calls of `add_argument`, and those that Megatron-LM makes of its dataclasses' fields."""

import ast

from tools.trainer_definitions.source import Field, Sources, calls, keywords

Flags = dict[str, str]
"""By flag: `switch`, or the type of its values, `+` or `*` where it takes several, and the choices, `str+ a|b`."""
_TYPES = {"int", "float", "str", "bool"}
SWITCHES = ("store_true", "store_false")


def flags_of(sources: Sources, module: str, functions: str) -> Flags:
    """The flags of a module whose argument groups are added by functions, named with the prefix `functions`."""
    found: Flags = {}
    for node in sources.module(module).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(functions):
            found |= _added(node)
            for call in calls(node, "ArgumentGroupFactory"):
                found |= _generated(sources, module, call, node)
    return dict(sorted(found.items()))


def _added(node: ast.FunctionDef) -> Flags:
    found = {}
    for call in calls(node, "add_argument"):
        options = keywords(call)
        names = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
        if "BooleanOptionalAction" in ast.unparse(options.get("action", call.func)):
            names += [name.replace("--", "--no-", 1) for name in names]
        found |= dict.fromkeys(names, _described(options))
    return found


def _described(options: dict[str, ast.expr]) -> str:
    action = options.get("action")
    if action is not None and (_text(action) in SWITCHES or "BooleanOptionalAction" in ast.unparse(action)):
        return "switch"
    kind = ast.unparse(options["type"]) if "type" in options else "str"
    number = _text(options.get("nargs"))
    several = {None: "", "+": "+", "*": "*"}.get(number, "+")
    return _line(kind, several, _choices(options.get("choices")))


def _line(kind: str, several: str, choices: list[str]) -> str:
    shown = kind if kind in _TYPES else "str"
    return " ".join([shown + several, *(["|".join(choices)] if choices else [])])


def _choices(node: ast.expr | None) -> list[str]:
    if isinstance(node, ast.List | ast.Tuple):
        return [str(each.value) for each in node.elts if isinstance(each, ast.Constant)]
    return []


def _text(node: ast.expr | None) -> str | None:
    return str(node.value) if isinstance(node, ast.Constant) else None


def _generated(sources: Sources, module: str, call: ast.Call, scope: ast.FunctionDef) -> Flags:
    """Flags that `ArgumentGroupFactory` makes of a dataclass."""
    excluded = keywords(call).get("exclude")
    if isinstance(excluded, ast.Name):
        name = excluded.id
        assigned = (n for n in ast.walk(scope) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name)
        excluded = next(assigned).value
    left_out = set(ast.literal_eval(excluded)) if excluded is not None else set()
    found: Flags = {}
    for field in sources.fields(module, ast.unparse(call.args[0])).values():
        if field.name not in left_out:
            found |= _of_field(field)
    return found


def _of_field(field: Field) -> Flags:
    options = keywords(field.default) if isinstance(field.default, ast.Call) else {}
    if _text(options.get("init")) == "False":
        return {}
    default = ast.unparse(options.get("default") or field.default or ast.Constant(None))
    names = [f"--{field.name.replace('_', '-')}"]
    kind, several, choices = _typed(field.annotation)
    if kind == "bool":
        names = names if default == "False" else [names[0].replace("--", f"--{no}-", 1) for no in ("no", "disable")]
    line = "switch" if kind == "bool" else _line(kind, several, choices)
    for call in [n for n in ast.walk(field.default) if isinstance(n, ast.Dict)] if field.default else []:
        table = {_text(key): value for key, value in zip(call.keys, call.values, strict=True) if key is not None}
        if "arg_names" in table:
            names = ast.literal_eval(table["arg_names"])
        own = {key: value for key, value in table.items() if key in ("type", "nargs", "choices", "action")}
        if own and line != "switch":
            line = _described({"type": ast.Name(kind)} | {str(key): value for key, value in own.items()})
    return dict.fromkeys(names, line)


def _typed(annotation: ast.expr) -> tuple[str, str, list[str]]:
    """The type of one value, `+` for a list, and a Literal's choices."""
    if isinstance(annotation, ast.BinOp):
        return _typed(annotation.left)
    if isinstance(annotation, ast.Subscript):
        name, inner = ast.unparse(annotation.value).rpartition(".")[2], annotation.slice
        if name == "Optional":
            return _typed(inner)
        if name in ("list", "List"):
            return _typed(inner)[0], "+", _typed(inner)[2]
        if name == "Literal":
            elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            values = [each.value for each in elements if isinstance(each, ast.Constant)]
            return type(values[0]).__name__, "", [str(value) for value in values]
    return ast.unparse(annotation), "", []
