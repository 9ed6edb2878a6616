"""Number formats of published rows, from their words to ours: of products, of weights and optimizer states, of sums."""

import re

from assertions import asserted
from case import Precision
from defaults import ImputedDefaults
from fourfold.cost.kernel_choice import BLACKWELL, HOPPER
from remarks import is_mlperf
from row import Row
from software import Trainer


def precision_of(row: Row, device: str, trainer: Trainer, imputed: ImputedDefaults) -> Precision:
    """Number formats; only what the text says, then the default. The words before a bracket name the GEMMs' format."""
    text, notes = _plain(row.precision or "").replace("32-bit", "fp32"), _plain(row.notes)
    if not text:
        text = imputed.fill(
            "precision", "fp8" if is_mlperf(row) and device.startswith((*HOPPER, *BLACKWELL)) else "bf16"
        )
    head = text.partition("(")[0]
    head = head if re.search(r"(bf|fp)\d", head) else text
    compute = _gemm_format(head) or _gemm_format(text) or _format(text)
    if compute is None:
        compute = "bf16"
        imputed.note(f"precision {text[:60]!r} names no number format that is known here: bf16 is taken.")
    if "amp_" not in text and text.startswith("fp16/bf16"):
        compute = "fp16"
    narrow = compute != "fp32" and _is_narrow(text, notes)
    master, gradients = compute if narrow else "fp32", "fp32"
    if stated := re.search(r"gradients (?:\w+ ){0,2}(bf16|fp16)|(bf16|fp16) gradients(?![^,;]*fp32)", text):
        gradients = stated[1] or stated[2]
    elif not _sums_widely(f"{text} {notes}", narrow):
        gradients = compute if narrow else gradients
        if _sums_as_computed(row, trainer, compute):
            gradients = imputed.fill("gradients", compute)
    return Precision(compute, _low(head, text, device, imputed), master, gradients)


def are_states_open(row: Row) -> bool:
    """Whether the source leaves out in what format weights and optimizer states are."""
    clauses = (
        r"fp ?32|float32|32[- ]?bit|full precision|master|mixed|\bamp(_|\b)|autocast|moment|8-?bit (adam|optimi)|true\b"
    )
    return not re.search(clauses, f"{row.precision or ''}; {row.notes}", re.I)


def moment_bytes_of(row: Row) -> float | None:
    """Bytes of each element of the optimizer states, where the row says that it keeps them in 8 or 16 bits, or by rows and columns
    alone (Adafactor, Shazeer & Stern 2018)."""
    text = _plain(f"{row.precision or ''}; {row.task or ''}; {row.notes}")
    if asserted(text, r"adafactor"):
        return 0.0
    if asserted(text, r"8-?bit (paged )?(adam|optimi[sz]er)|(adamw?|optimi[sz]er)[- ]?(in )?8-?bit|\bpaged adam"):
        return 1.0
    return 2.0 if asserted(text, r"moments in (bf16|fp16)|(bf16|fp16) moments") else None


def _plain(text: str) -> str:
    """Formats by one name each."""
    text = text.lower().replace("torch.", "").replace("bfloat16", "bf16")
    text = re.sub(r"\bhalf( precision)?\b", "fp16", re.sub(r"\bsingle( precision)?\b", "fp32", text))
    return text.replace("float16", "fp16").replace("float32", "fp32").replace("float8", "fp8")


_NARROW = (
    r"\b(bf16|fp16)[- ]true\b|\bpure (bf16|fp16)\b|(bf16|fp16) \(pure\)|(without|no) fp32 masters?\b"
    r"|torch_dtype[ =:]+(bf16|fp16)|loaded in (bf16|fp16)|(parameters|weights|gradients) and moments (are )?in (bf16|fp16)"
)
_FP32_STATES = r"fp32 (main |master )?(masters?|weights?|parameters?|cop(y|ies))|master in fp32|weights (in )?fp32"


def _is_narrow(text: str, notes: str) -> bool:
    """Whether weights and optimizer states are in 16 bits, without wider copies."""
    if asserted(f"{text}; {notes}", _FP32_STATES):
        return False
    own = r"(weights|parameters)[^;:)]*\b(too|moments)(?![^;)]*fp32)"
    if re.search(own, text) or ("fp32" not in text and asserted(text, r"bf16 (weights|parameters)")):
        return True
    return bool(asserted(text, _NARROW) or asserted(notes, _NARROW))


_OF_STATES = r"moment|optimi[sz]|adam|master|grad|reduc|state|norm|logit|softmax|accumul"


def _gemm_format(text: str) -> str | None:
    """The format of 16 bits or more that products are in, apart from what is said of states, gradients and sums."""
    clauses = [clause for clause in re.split(r"[,;()+]", text) if not re.search(_OF_STATES, clause)]
    return _format(", ".join(clauses)) or ("bf16" if any(re.search(r"fp[48]", clause) for clause in clauses) else None)


def _format(text: str) -> str | None:
    return next((name for name in ("bf16", "fp16", "fp32") if name in text), None)


NARROW_SUMS = ("deepspeed", "fsdp", "llm-foundry", "modalities", "colossal-ai", "internevo")
"""Frameworks that sum gradients in the format computed in: FSDP's usual mixed precision, DeepSpeed, Colossal-AI's low-level ZeRO
and what descends from it."""
TUNED_SINCE = 2024
"""From then on the recipes behind NeMo's and Megatron Bridge's own tables of performance sum gradients in bf16."""
_TUNED = r"perf|dgxc|training_results|nvidia-nemo/"
_FP32_SUMS = r"fp32 gradients|gradients? [^,;]*(fp32|32 bit)"


def _sums_widely(text: str, narrow: bool) -> bool:
    """Whether gradients are said to be summed in fp32; under autocast they have the format of the parameters."""
    return bool(re.search(_FP32_SUMS, text)) or (not narrow and "autocast" in text)


def _sums_as_computed(row: Row, trainer: Trainer, compute: str) -> bool:
    tuned = trainer.framework == "nemo" and trainer.year >= TUNED_SINCE and re.search(_TUNED, row.source, re.I)
    if trainer.framework in NARROW_SUMS or tuned:
        return compute != "fp32"
    return compute == "fp16" and trainer.is_megatron_family and "deepspeed" not in trainer.framework


def _low(head: str, text: str, device: str, imputed: ImputedDefaults) -> str | None:
    """The flavour of products in fewer than 16 bits."""
    finer = "mxfp8" if device in BLACKWELL else "fp8-block"
    if "fp4" in head:
        return "nvfp4"
    if "fp8" not in head:
        return None
    if "mxfp8" in text or "fp8-mx" in text:
        return "mxfp8"
    if "finer" in text or "block" in text or "fp8-sc" in text or "mixed" in head:
        return imputed.fill("precision", finer, "fp8_flavour")
    if "fp8-cs" in text or "delayed" in text or "tensor" in text:
        return "fp8"
    return imputed.fill("precision", "fp8", "fp8_flavour")
