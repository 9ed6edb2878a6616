"""Recomputation and schedule, from the words of published rows to ours."""

import re

from case import ALTERNATE, ATTENTION_CORE, NotACase
from defaults import ImputedDefaults
from remarks import recomputes_what_is_not_offloaded
from row import Row
from software import Trainer


def is_recompute_open(row: Row) -> bool:
    """Whether the source leaves out what is recomputed, and does not count it among its FLOPs either."""
    return is_recompute_unstated(row) and not is_full_counted(row)


def is_recompute_unstated(row: Row) -> bool:
    """Whether the source does not say in words what is recomputed."""
    text = (row.recompute or "").lower()
    return not text or "not stated" in text or "see recipe" in text or text == "null"


def is_full_counted(row: Row) -> bool:
    """Whether the FLOPs that a source reports have a full recomputation among them: nobody counts what was not done."""
    text = f"{row.flops_convention}; {row.figures.flops_kind}"
    return bool(re.search(r"(incl\w*\.?|counts?|with) (a |the )?full recompute", text, re.I))


def recompute_of(row: Row, trainer: Trainer, imputed: ImputedDefaults) -> tuple[str, tuple[str, ...]]:
    """(policy, modules that are recomputed where it is selective)."""
    text = (row.recompute or "").lower()
    if is_recompute_unstated(row) and is_full_counted(row):
        return imputed.fill("recompute", "full", "recompute_counted"), ()
    if is_recompute_open(row):
        full = "full assumed" in text or (trainer.framework.startswith("megatron") and trainer.year in (2020, 2021))
        policy = "full" if full or "recompute=full" in row.notes else "none"
        return imputed.fill("recompute", "selective" if trainer.is_xla else policy), ()
    if text.startswith(("full", "true")) or re.search(r"\brest recomputed|recomputes? (all|everything|the rest)", text):
        return "full", ()
    if text.startswith(("none", "no ", "false")):
        return "none", ()
    if text.startswith("selective"):
        named = re.findall(r"[a-z_]+", text.partition(":")[2]) if ":" in text else []
        if trainer.framework == "torchtitan":
            if row.model.num_experts:
                return imputed.fill("recompute", "full", "recompute_experts"), ()
            return imputed.fill("recompute", ALTERNATE, "recompute_products"), ()
        modules = tuple(named) or ATTENTION_CORE
        imputed.approximate("recompute_attention" if modules == ATTENTION_CORE else "recompute_modules")
        return "selective", modules
    if recomputes_what_is_not_offloaded(text):
        return "full", ()
    imputed.approximate("recompute_modules")
    named = [word for word in re.findall(r"[a-z_\-]+", text) if not word.startswith("recompute")]
    return "selective", tuple(named[:20])


_SCHEDULES: tuple[tuple[str, str], ...] = (
    (r"dualpipe", "dualpipe_v"),
    (r"zb[-_ ]?v|zero[- ]bubble v", "zb_v"),
    (r"zb[-_ ]?(2p|h2)", "zb_h2"),
    (r"zb[-_ ]?(1p|h1)|zero[- ]bubble", "zb_h1"),
    (r"interleav|vpp", "interleaved_1f1b"),
    (r"gpipe|all forward", "gpipe"),
    (r"1f1b|pipedream", "1f1b"),
)


def schedule_of(row: Row, imputed: ImputedDefaults) -> str | None:
    """Our name of the stated schedule. None where none is stated, or it is not known."""
    text = (row.schedule or "").lower()
    if re.search(r"seq1f1b|terapipe|slimpipe|token[- ]level", text):
        raise NotACase(f"the schedule {text[:60]!r} cuts sequences into parts, which no schedule here does")
    for pattern, name in _SCHEDULES:
        if re.search(pattern, text):
            if name == "dualpipe_v" and "v" not in text.partition("dualpipe")[2][:2]:
                imputed.approximate("dualpipe")
            if re.search(r"zb[-_ ]?[12]p|zero[- ]bubble(?! v)", text):
                imputed.approximate("zero_bubble")
            return name
    if text:
        imputed.note(f"the schedule {text[:60]!r} is not known and is taken as 1F1B")
    return None
