"""Precision, recomputation and schedule, from the words of published rows to ours."""

import re

from fourfold.validate.case import ALTERNATE, ATTENTION_CORE, AttentionKernel, Precision
from fourfold.validate.defaults import Filled
from fourfold.validate.machine import BLACKWELL
from fourfold.validate.remarks import WITH_FP8, asserted, is_mlperf, recomputes_what_is_not_offloaded
from fourfold.validate.row import Row
from fourfold.validate.stack import Stack


def precision_of(row: Row, device: str, stack: Stack, filled: Filled) -> Precision:
    """Number formats; only what the text says, then the default. What stands before a bracket names the products' format."""
    text = (row.precision or "").lower().replace("float8", "fp8").replace("32-bit", "fp32")
    text = text.replace("bfloat16", "bf16").replace("float16", "fp16").replace("float32", "fp32")
    if not text:
        text = filled.fill("precision", "fp8" if is_mlperf(row) and device.startswith(WITH_FP8) else "bf16")
    head = text.partition("(")[0]
    head = head if re.search(r"(bf|fp)\d", head) else text
    compute = _products(head) or _products(text) or _format(text) or "bf16"
    if "amp_" not in text and text.startswith("fp16/bf16"):
        compute = "fp16"
    narrow = compute != "fp32" and _is_narrow(text, row.notes)
    master, gradients = compute if narrow else "fp32", "fp32"
    if stated := re.search(r"gradients (?:\w+ ){0,2}(bf16|fp16)|(bf16|fp16) gradients", text):
        gradients = stated[1] or stated[2]
    elif not _WIDE_SUMS.search(f"{text} {row.notes.lower()}"):
        gradients = compute if narrow else gradients
        if _sums_as_computed(row, stack, compute):
            gradients = filled.fill("gradients", compute)
    return Precision(compute, _low(head, text, device, filled), master, gradients)


def are_states_open(row: Row) -> bool:
    """Whether the source leaves out in what format weights and moments are."""
    return not re.search(
        r"fp32|float32|32[- ]bit|master|mixed|\bamp\b|autocast|moment", f"{row.precision or ''}; {row.notes}", re.I
    )


_NARROW = (
    r"\b(bf16|fp16)[- ]true\b|\bpure (bf16|fp16)\b|(without|no) fp32 masters?\b|torch_dtype (bf16|fp16)|loaded in (bf16|fp16)"
    r"|(parameters|weights|gradients) and moments (are )?in (bf16|fp16)"
)


def _is_narrow(text: str, notes: str) -> bool:
    """Whether weights and moments are in 16 bits, without wider copies."""
    if re.search(
        r"(weights|parameters)[^;:)]*\b(too|moments)(?![^;)]*fp32)|pure (bf16|fp16)|(bf16|fp16) \(pure\)", text
    ):
        return True
    own = re.search(r"bf16 (weights|parameters)|moments in bf16|bf16 moments", text)
    return ("fp32" not in text and own is not None) or bool(asserted(f"{text}; {notes}", _NARROW))


def moment_bytes_of(row: Row) -> float | None:
    """Of each element of the optimizer's moments, where the row says that it keeps them in 8 bits."""
    text = f"{row.precision or ''}; {row.task or ''}; {row.notes}"
    narrow = r"8-?bit (paged )?(adam|optimi[sz]er)|(adamw?|optimi[sz]er)[- ]?(in )?8-?bit|\bpaged adam"
    return 1.0 if asserted(text, narrow) else None


_OF_STATES = r"moment|optimi[sz]|adam|master|grad|reduc|state|norm|logit|softmax|accumul"


def _products(text: str) -> str | None:
    """The format of 16 bits or more that products are in, apart from what is said of states, gradients and sums."""
    said = [clause for clause in re.split(r"[,;()+]", text) if not re.search(_OF_STATES, clause)]
    return _format(", ".join(said)) or ("bf16" if any(re.search(r"fp[48]", clause) for clause in said) else None)


def _format(text: str) -> str | None:
    return next((name for name in ("bf16", "fp16", "fp32") if name in text), None)


NARROW_SUMS = ("deepspeed", "fsdp", "llm-foundry", "modalities")
"""Frameworks that sum gradients in the format computed in: FSDP's usual mixed precision, DeepSpeed."""
TUNED_SINCE = 2024
"""From then on the recipes behind NeMo's and Megatron Bridge's own tables of performance sum gradients in bf16."""
_TUNED = r"perf|dgxc|training_results|nvidia-nemo/"
_WIDE_SUMS = re.compile(r"fp32 gradients|gradients? [^,;]*(fp32|32 bit)|autocast")


def _sums_as_computed(row: Row, stack: Stack, compute: str) -> bool:
    tuned = stack.framework == "nemo" and stack.year >= TUNED_SINCE and re.search(_TUNED, row.source, re.I)
    if stack.framework in NARROW_SUMS or tuned:
        return compute != "fp32"
    return compute == "fp16" and stack.is_megatron_kin and "deepspeed" not in stack.framework


def _low(head: str, text: str, device: str, filled: Filled) -> str | None:
    """The flavour of products in fewer than 16 bits."""
    finer = "mxfp8" if device in BLACKWELL else "fp8-block"
    if "fp4" in head:
        return "nvfp4"
    if "fp8" not in head:
        return None
    if "mxfp8" in text or "fp8-mx" in text:
        return "mxfp8"
    if "finer" in text or "block" in text or "fp8-sc" in text or "mixed" in head:
        return filled.fill("precision", finer, "fp8_flavour")
    if "fp8-cs" in text or "delayed" in text or "tensor" in text:
        return "fp8"
    return filled.fill("precision", "fp8", "fp8_flavour")


def is_recompute_open(row: Row) -> bool:
    """Whether the source leaves out what is recomputed."""
    text = (row.recompute or "").lower()
    return not text or "not stated" in text or "see recipe" in text or text == "null"


def recompute_of(row: Row, stack: Stack, filled: Filled) -> tuple[str, tuple[str, ...]]:
    """(policy, modules that are recomputed where it is selective)."""
    text = (row.recompute or "").lower()
    if is_recompute_open(row):
        full = "full assumed" in text or (stack.framework.startswith("megatron") and stack.year in (2020, 2021))
        policy = "full" if full or "recompute=full" in row.notes else "none"
        return filled.fill("recompute", "selective" if stack.framework in ("maxtext", "paxml") else policy), ()
    if text.startswith(("full", "true")) or re.search(r"\brest recomputed|recomputes? (all|everything|the rest)", text):
        return "full", ()
    if text.startswith(("none", "no ", "false")):
        return "none", ()
    if text.startswith("selective"):
        named = re.findall(r"[a-z_]+", text.partition(":")[2]) if ":" in text else []
        if stack.framework == "torchtitan":
            return filled.fill("recompute", "full" if row.model.num_experts else ALTERNATE, "recompute_products"), ()
        modules = tuple(named) or ATTENTION_CORE
        filled.approximate("recompute_attention" if modules == ATTENTION_CORE else "recompute_modules")
        return "selective", modules
    if recomputes_what_is_not_offloaded(text):
        return "full", ()
    filled.approximate("recompute_modules")
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


def schedule_of(row: Row, filled: Filled) -> str | None:
    """Our name of the stated schedule. None where none is stated, or it is not known."""
    text = (row.schedule or "").lower()
    for pattern, name in _SCHEDULES:
        if re.search(pattern, text):
            if name == "dualpipe_v" and "v" not in text.partition("dualpipe")[2][:2]:
                filled.approximate("dualpipe")
            if re.search(r"zb[-_ ]?[12]p|zero[- ]bubble(?! v)", text):
                filled.approximate("zero_bubble")
            return name
    if text:
        filled.note(f"the schedule {text[:60]!r} is not known and is taken as 1F1B")
    return None


_KERNELS: tuple[tuple[AttentionKernel, str], ...] = (
    (
        "flash 3",
        r"\bfa-?[34]\b|flash[- ]?att(n|ention)?[- ]?v?[34]\b|cudnn (flash |fused )?(att|kernel|sdpa)|sdpa with the cudnn",
    ),
    ("flash 2", r"\bfa-?2\b|flash[- ]?att(n|ention)?[- ]?v?2\b"),
)


def attention_kernel_of(row: Row, stack: Stack, filled: Filled) -> AttentionKernel | None:
    """Which generation of flash attention the row names: written for Hopper and since (cuDNN's among them, which Megatron's kin
    have anyway), or the one before."""
    for name, pattern in _KERNELS:
        if asserted(row.notes, pattern) and not (name == "flash 3" and stack.is_megatron_kin):
            return filled.fill("attention_kernel", name)
    return None


FUSED_SINKS = (2026, 6)
"""Release (year and month) since which Megatron's makers have a fused kernel for attention with learned sinks in what they release;
in MLPerf they had one before."""


def attention_of(row: Row, stack: Stack, filled: Filled) -> str:
    """`flash`, `unfused`, or `math`: torch's own operators, on scores in fp32."""
    if row.attention is not None:
        return row.attention
    words = f"{row.source} {row.notes}".lower()
    if re.search(r"\bmath (attention|backend)", words):
        return "math"
    if re.search(r"\b(unfused|naive) (attention|backend)|(no|without|not) (flash|fused[- ]att)", words):
        return "unfused"
    if re.search(r"flash[- ]?att", words):
        return "flash"
    has_sinks = re.search(r"gpt-?oss", row.model.name, re.I) and not is_mlperf(row)
    if has_sinks and stack.is_megatron_kin and (stack.year, stack.release) < FUSED_SINKS:
        return filled.fill("attention", "unfused", "attention_sinks")
    written = stack.year in (2020, 2021, 2022) or stack.framework == "megatron-zero-bubble"
    return "unfused" if written else filled.fill("attention", "flash")
