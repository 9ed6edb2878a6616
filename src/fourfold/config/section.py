"""Base of every section of the run file: a frozen table without unknown keys, and the number formats."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Dtype = Literal["fp64", "fp32", "bf16"]
DTYPE_BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2}


class Section(BaseModel):
    """A table of the run file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
