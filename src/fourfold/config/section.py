"""Base of every section of the run file: a frozen table without unknown keys; number formats; what is written under each key."""

import ast
import inspect
import textwrap
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict

Dtype = Literal["fp64", "fp32", "bf16"]
DTYPE_BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2}


class Section(BaseModel):
    """A table of the run file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@lru_cache
def texts(section: type) -> dict[str, str]:
    """The text under each key in the source of a section, of what it extends, and of the record that describes its keys."""
    described: type | None = getattr(section, "described_by", None)
    found: dict[str, str] = {}
    for each in (*reversed(section.__mro__), *(reversed(described.__mro__) if described is not None else ())):
        if each not in (object, BaseModel) and (each is not section or described is None):
            found.update(_own_texts(each))
    return found


def _own_texts(kind: type) -> dict[str, str]:
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in pairwise(getattr(body, "body", []))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
