"""One key of a valid `config.json` changed: the loss of what fourfold imports equals transformers', or the key is refused.

A case is a family's small folder (`BASES`), a key, and the value that it gets (`LEFT_OUT`: none). transformers loads the folder
with the changed config.json and the same weights, and gives the loss in training, where dropout counts. fourfold takes the way of
`fourfold import`. The verdict is in `Verdict.kind`.
"""

import contextlib
import copy
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from fourfold.checkpoint import WeightFolder
from fourfold.cli.checkpoint import import_
from fourfold.config import ModelConfig, RunFailure, UserError, load_run
from fourfold.huggingface import FAMILIES, resolve_model
from fourfold.layout import resolve_layout
from tests.support.config_values import BASES, LEFT_OUT, OTHERS, ROPE_VALUES, SIZES, changes
from tests.support.parity_reference import attention_of, exact_parts
from tests.support.plain_model import PlainModel

LENGTH = 40
_RELATED = {
    **dict.fromkeys(("use_sliding_window", "max_window_layers", "layer_types"), "sliding_window"),
    "attention_bias": "bias", "use_qk_norm": "norm", "model_type": "in this family", "rope_parameters": "rope",
    "rope_scaling": "rope", "type": "rope_type",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`path`: the key, below the key of a table where it is in one."""

    base: str
    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        return f"{self.base} | {'.'.join(self.path)} = {json.dumps(self.value)}"

    def applied(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The config.json with the key changed."""
        raw = copy.deepcopy(raw)
        table = raw
        for key in self.path[:-1]:
            table = table[key]
        if self.value == LEFT_OUT:
            table.pop(self.path[-1], None)
        else:
            table[self.path[-1]] = self.value
        return raw


@dataclass(frozen=True)
class Verdict:
    """`kind`: `same` (equal loss), `refused` by name, `both refuse`, `unloaded` (transformers alone refuses), or a breach of the
    law: `another model`, `unnamed refusal`, `crash`. `words`: losses, or the message."""

    kind: str
    words: str

    @property
    def holds(self) -> bool:
        return self.kind in ("same", "refused", "both refuse", "unloaded")


def write_base(name: str, folder: Path) -> dict[str, Any]:
    """Saves a base as transformers does; returns its config.json, with every key that its class has."""
    family, keys = BASES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **keys})
    model = AutoModelForCausalLM.from_config(config).double()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    raw = {**config.to_dict(), **json.loads((folder / "config.json").read_text())}
    raw = json.loads(json.dumps(raw, default=str))
    (folder / "config.json").write_text(json.dumps(raw))
    return dict(raw)


def cases(name: str, raw: dict[str, Any]) -> list[Case]:
    """All mutations of a base's config.json."""
    found = [Case(name, (key,), value) for key in raw for value in changes(key, raw[key], name)]
    found += [Case(name, (key,), value) for key, values in OTHERS.items() for value in values]
    if "rope_parameters" in raw:
        rope = raw["rope_parameters"]
        found += [
            Case(name, ("rope_parameters", key), value) for key in rope for value in changes(key, rope[key], name)
        ]
        found += [
            Case(name, ("rope_parameters", key), value) for key, values in ROPE_VALUES.items() for value in values
        ]
    return list({case.name: case for case in found}.values())


def judge(case: Case, folder: Path, raw: dict[str, Any]) -> Verdict:
    """Verdict of the two sides on the folder with the case's config.json, which is put back afterwards."""
    path = folder / "config.json"
    path.write_text(json.dumps(case.applied(raw)))
    try:
        length = LENGTH
        ours = _ours(folder, length)
        theirs = loss_of_transformers(folder, length)
    finally:
        path.write_text(json.dumps(raw))
    if isinstance(ours, Exception):
        if not isinstance(ours, (UserError, RunFailure)):
            return Verdict("crash", f"{type(ours).__name__}: {ours}")
        if isinstance(theirs, str):
            return Verdict("both refuse", f"{ours} | {theirs}")
        return Verdict("refused" if _names(case, str(ours)) else "unnamed refusal", f"{ours} | theirs {theirs}")
    loss, output = ours
    if isinstance(theirs, str):
        return Verdict("unloaded", f"{loss} | {theirs} | {output}")
    near = abs(loss - theirs) <= _tolerance(case) * abs(theirs)
    return Verdict("same" if near else "another model", f"{loss} | theirs {theirs} | {output}")


def _tolerance(case: Case) -> float:
    """transformers computes routers and recurrences in fp32, and on the processor attention with a mask that it is given."""
    if case.path[-1] == "layer_types":
        return 1e-7
    family = FAMILIES[BASES[case.base][0]]
    return 2e-6 if family.has_experts or "delta_value_heads" in family.needs else 1e-9


def _names(case: Case, message: str) -> bool:
    key = case.path[-1]
    family = FAMILIES[BASES[case.base][0]]
    ours = [each.ours for each in family.keys if key in (each.theirs, *each.aliases)]
    return any(name in message for name in (key, *ours, _RELATED.get(key, key)))


def batch(length: int) -> tuple[Tensor, Tensor]:
    """tokens and targets [2, length]."""
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(0, 250, (2, 2, length), generator=generator)
    return tokens, targets


def loss_of_transformers(folder: Path, length: int) -> float | str:
    """The loss in training by transformers; what it says where it does not load the folder with all of its weights."""
    tokens, targets = batch(length)
    kind = json.loads((folder / "config.json").read_text()).get("model_type")
    more = (
        {"experts_implementation": "eager"}
        if isinstance(kind, str) and kind in FAMILIES and FAMILIES[kind].has_experts
        else {}
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            model, problems = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float64,
                attn_implementation=attention_of(kind),
                output_loading_info=True,
                local_files_only=True,
                **more,
            )
            if problems["missing_keys"] or problems["mismatched_keys"]:
                return f"missing: {sorted(problems['missing_keys'])[:3]}"
            torch.manual_seed(0)
            with torch.no_grad():
                logits = model.double().train()(tokens, use_cache=False).logits
            return float(cross_entropy(logits.flatten(0, 1), targets.flatten()))
    except Exception as error:
        return f"{type(error).__name__}: {re.sub(chr(10), ' ', str(error))[:160]}"


def _ours(folder: Path, length: int) -> tuple[float, str] | Exception:
    """The loss of what `fourfold import` makes of the folder, and what it says; or what it raises."""
    out, output = folder / "run.toml", io.StringIO()
    out.unlink(missing_ok=True)
    try:
        with contextlib.redirect_stdout(output):
            import_(folder, out=out, tokenizer="bytes")
        run = load_run(out, [f"batch.sequence_length={length}"])
        model = resolve_model(run.model)
        resolve_layout(run, model, 1)
        return imported_loss(folder, model, length), output.getvalue()
    except Exception as error:
        return error


def imported_loss(folder: Path, model: ModelConfig, length: int) -> float:
    """The mean loss of the model with the folder's weights, fp64."""
    ours = PlainModel(model)
    weights = WeightFolder(folder)
    weights.check_against(model)
    for name, parameter in ours.parameters().items():
        parameter.copy_(weights.get(name))
    tokens, targets = batch(length)
    return float(ours.loss(ours.microbatch(tokens, targets))) / targets.numel()


@contextlib.contextmanager
def exact_norms() -> Iterator[None]:
    """transformers' RMS norms and plain attention in the format of their input instead of fp32."""
    kept = []
    for family in FAMILIES:
        for code, name, exact in exact_parts(family):
            kept.append((code, name, getattr(code, name)))
            setattr(code, name, exact)
    try:
        yield
    finally:
        for code, name, norm in kept:
            setattr(code, name, norm)
