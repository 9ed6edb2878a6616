"""Kernels of a published row and what runs beside them, from its words to ours; the rest is as its software usually has it."""

import re

from assertions import asserted, clauses_of, says
from defaults import ImputedDefaults
from fourfold.config.kernel_choice import KernelChoice
from fourfold.cost.kernel_choice import BLACKWELL, HOPPER
from remarks import are_experts_fused, are_experts_merged, dispatcher_of, is_eager, is_graphed, is_mlperf
from row import Row
from software import Trainer

_CHUNKED = r"\bliger\b|chunked (cross|loss|ce\b)|fused[-_ ]?linear[-_ ]?(cross|ce\b)|\bcut[-_ ]cross|\blc-ce\b"
_FLASH_3 = r"\bfa-?[34]\b|flash[- ]?att(n|ention)?[- ]?v?[34]\b"
_CUDNN = r"cudnn (flash |fused )?(att|kernel|sdpa)|sdpa with the cudnn"
_FLASH = (
    ("flash-2", r"\bfa-?2\b|flash[- ]?att(n|ention)?[- ]?v?2\b"),
    ("flash-1", r"\bfa-?1\b|flash[- ]?att(n|ention)?[- ]?(\()?v?1\b(?! or)(?!\.?\d)"),
)
_OTHERS: tuple[tuple[str, str, str], ...] = (
    ("norms", "unfused", r"norm not fused|unfused (rms|layer)?-?norm"),
    ("norms", "fused", r"(fused|triton|apex) (rms|layer) ?norm|liger kernels? \(rmsnorm|liger.*\bnorm\b"),
    ("softmax", "unfused", r"unfused softmax|plain softmax arm"),
    ("softmax", "fused", r"fused (masked )?softmax|\(masked softmax\)"),
    ("loss", "chunked", _CHUNKED),
    ("loss", "unfused", r"logits (of the whole vocabulary )?(to|in) fp32|(?<!the )fp32 logits"),
    ("loss", "fused", r"fused cross[- ]entropy"),
    ("rotary", "unfused", r"unfused (rope|rotary)"),
    ("rotary", "fused", r"fused (rope|rotary)|rmsnorm and rotary embedding"),
    ("optimizer", "for-loop", r"for[- ]loop (adam|optim)"),
    ("optimizer", "foreach", r"\bforeach\b"),
    ("optimizer", "fused", r"fused ?adam|apex adam"),
)


_TENSOR_OVERLAP = (
    r"\btp[ _-]?comm(unication)?[ _-]?overlap|\basync(hronous)? (tp\b|tensor[- ]parallel)|\btp overlap|tensor[- ]parallel overlap|"
    r"\boverlap(s|ped|ping)? (of )?(tp\b|tensor[- ]parallel)|userbuffers"
)


def kernels_of(row: Row, trainer: Trainer, device: str, low: str | None, imputed: ImputedDefaults) -> KernelChoice:
    """The words that a row's text gives; None for the others. torch.compile makes one kernel of what lies between two matmuls;
    eager torch one of each operator. `low`: format of low-precision matmuls."""
    found: dict[str, str | None] = {
        "attention": attention_of(row, trainer, device, imputed),
        "tp_collectives": _tensor_collectives(row),
        "dispatcher": dispatcher_of(row),
        "ep_collectives": "overlapped" if are_experts_merged(row, trainer, low, imputed) else None,
        "experts": "fused" if are_experts_fused(row) else None,
        "launches": "graph" if is_graphed(row, device, imputed) else None,
    }
    for key, word, pattern in _OTHERS:
        if key not in found and asserted(row.notes, pattern):
            found[key] = word
    if is_eager(row, trainer, ImputedDefaults([])):
        found = {"norms": "unfused", "rotary": "unfused", **found}
    elif asserted(row.notes, r"torch\.compile") and not trainer.is_megatron_family and not trainer.is_xla:
        found = {"norms": "fused", "rotary": "fused", "loss": "fused", **found}
    return KernelChoice.model_validate(found)


def _tensor_collectives(row: Row) -> str | None:
    """Whether collectives of tensor parallelism are said to run beside matmuls, or not to; None: nothing is said."""
    spoken = [clause for clause in clauses_of(row.notes) if re.search(_TENSOR_OVERLAP, clause)]
    if not spoken:
        return None
    return "overlapped" if any(says(clause, _TENSOR_OVERLAP) for clause in spoken) else "exposed"


FUSED_SINKS = (2026, 6)
"""Release (year and month) since which Megatron's makers have a fused kernel for attention with learned sinks in what they release;
in MLPerf they had one before."""


def attention_of(row: Row, trainer: Trainer, device: str, imputed: ImputedDefaults) -> str:
    """A word for attention. `flash` where the generation is not named."""
    word = _attention_of(row, trainer, imputed)
    return _generation_of(row, trainer, device, imputed) if word == "flash" else word


def _generation_of(row: Row, trainer: Trainer, device: str, imputed: ImputedDefaults) -> str:
    """The generation of flash attention that the row names. Megatron's forks have cuDNN's or the newest anyway."""
    is_new = device.startswith((*HOPPER, *BLACKWELL))
    if is_new and not trainer.is_megatron_family and asserted(row.notes, f"{_FLASH_3}|{_CUDNN}"):
        return imputed.fill("attention", "flash-3" if asserted(row.notes, _FLASH_3) else "cudnn", "attention_kernel")
    for word, pattern in _FLASH:
        if asserted(row.notes, pattern):
            return imputed.fill("attention", word, "attention_kernel")
    return "flash"


def _attention_of(row: Row, trainer: Trainer, imputed: ImputedDefaults) -> str:
    """`flash`, `unfused`, or `math`: torch's own operators, on scores in fp32."""
    if row.attention is not None:
        return row.attention
    words = f"{row.source} {row.notes}".lower()
    if re.search(r"\bmath (attention|backend)", words):
        return "math"
    if re.search(r"\b(unfused|naive) (attention|backend)|(no|without|not) (flash|fused[- ]att)", words):
        return "unfused"
    if asserted(words, r"\beager attention\b"):
        return "unfused"
    if re.search(r"flash[- ]?att", words):
        return "flash"
    has_sinks = re.search(r"gpt-?oss", row.model.name, re.I) and not is_mlperf(row)
    if has_sinks and trainer.is_megatron_family and (trainer.year, trainer.release) < FUSED_SINKS:
        return imputed.fill("attention", "unfused", "attention_sinks")
    written = trainer.year in (2020, 2021, 2022) or trainer.framework == "megatron-zero-bubble"
    return "unfused" if written else imputed.fill("attention", "flash")
