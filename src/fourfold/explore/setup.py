"""Requests of the page: a run, overrides, a cluster, as the API's functions take them, without access to files or code."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.config.kernel_choice import CHOICES
from fourfold.config.presets import RUN_PRESET
from fourfold.hardware import is_path

Text = Annotated[str, Field(max_length=200)]
Stated = Text | float
Leaf = bool | int | float | Text
Few = Annotated[list[Leaf], Field(max_length=10_000)]
Table = dict[Text, Leaf | Few | dict[Text, Leaf]]
Value = Leaf | None | Few | dict[Text, Leaf] | Annotated[list[Table], Field(max_length=10_000)]
_SECTIONS = ("model", "batch", "layout", "precision", "optimizer")
_KEYS = (
    "data.document_mask", "data.document_tokens", "data.tokenizer", "cluster.gemm_dtype", "cluster.software",
    *(f"cluster.{key}" for key in CHOICES),
    "run.attention_backend", "checkpoint.memory_every_steps",
)  # fmt: skip
NOT_HERE = ("model.hf", "model.initial", "model.block", "layout.auto")
"""Keys that name files or code, or start a search."""
_NAME = re.compile(r"[a-z][a-z_]{0,40}(\.[a-z][a-z_]{0,40})?")
_TOKENIZER = re.compile(r"bytes|bpe:[0-9]{1,7}")


Request = TypeVar("Request", bound=BaseModel)


class Malformed(UserError):
    """A request that the page never makes. Any other `UserError` is an answer: of a layout that cannot run, for example."""


class Setup(BaseModel):
    """A request. `run`: `preset:NAME`, or None for a run that `overrides` state in full, by their dotted keys. The others are
    options of `fourfold simulate`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    run: Text | None = None
    overrides: Annotated[dict[Text, Value], Field(max_length=200)] = {}
    cluster: Text | None = None
    software: Text | None = None
    gemm_dtype: Text | None = None
    context_bytes: Stated | None = None
    fragmentation: float | None = None
    tokens: Stated | None = None
    failure_hours: Stated | None = None
    checkpoint_seconds: Stated | None = None
    restart_seconds: Stated | None = None
    repair_seconds: Stated | None = None
    price: Stated | None = None

    @property
    def run_input(self) -> str | Mapping[str, Any]:
        """The first argument of `fourfold.simulate`."""
        return self.run if self.run is not None else {}

    @property
    def stated(self) -> dict[str, Any]:
        """The overrides that state something: TOML has no null."""
        return {key: value for key, value in self.overrides.items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The stated options of `fourfold.simulate`."""
        return self.model_dump(exclude={"run", "overrides"}, exclude_none=True)


def validated(model: type[Request], body: Mapping[str, Any], remedy: str) -> Request:
    """A request of the page. Raises `Malformed`, which ends in `remedy`."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "request"
        raise Malformed(f"{where} = {shortened(first.get('input'))}: {first['msg']}; {remedy}") from None


def read_setup(body: Mapping[str, Any]) -> Setup:
    """Raises `Malformed` for a request that is none of ours, and for one that would read a file or import code."""
    setup = validated(Setup, body, 'what works: {"run": "preset:llama3-70b", "overrides": {"layout.tp": 8}}')
    if setup.run is not None and not setup.run.startswith(RUN_PRESET):
        raise Malformed(f"run = {shortened(setup.run)}: allowed: {RUN_PRESET}NAME, for example {RUN_PRESET}llama3-70b")
    for name in (setup.cluster, setup.software):
        if name is not None and is_path(name):
            raise Malformed(f"{shortened(name)}: files cannot be named here; allowed: a name that fourfold list prints")
    for key, value in setup.overrides.items():
        _check_key(key, value)
    return setup


def _check_key(key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    known = (section in _SECTIONS and _NAME.fullmatch(name)) or key in _KEYS
    if not known or key in NOT_HERE:
        raise Malformed(
            f"{shortened(key)}: cannot be stated here; allowed: keys of {', '.join(_SECTIONS)}, and {', '.join(_KEYS)}; for "
            "example layout.zero"
        )
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(each, str) and each.startswith(("file:", "python:")) for each in texts):
        raise Malformed(f"{key} = {shortened(value)}: files and code cannot be named here; allowed: built-in names")
    if key == "data.tokenizer" and not _TOKENIZER.fullmatch(str(value)):
        raise Malformed(f"{key} = {shortened(value)}: files cannot be named here; allowed: bytes, bpe:N")
    if key == "cluster.software" and is_path(str(value)):
        raise Malformed(f"{key} = {shortened(value)}: files cannot be named here; a value that works: megatron")


def body_of(keys: dict[str, Any]) -> dict[str, Any]:
    """The request that keys stand for: those of the run file are overrides, the others options."""
    overrides = {key: value for key, value in keys.items() if "." in key}
    return {"overrides": overrides, **{key: value for key, value in keys.items() if "." not in key}}


def text_of(value: Any) -> str:
    """A value as an address has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)


def texts_of_keys(keys: Mapping[str, Any]) -> dict[str, str]:
    """Keys with their values as an address has them."""
    return {key: text_of(value) for key, value in keys.items()}
