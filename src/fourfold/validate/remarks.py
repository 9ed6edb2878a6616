"""What the free text of a published row says of its run beside the settings that have a field of their own."""

import re

from fourfold.validate.case import Offloaded, Untranslatable
from fourfold.validate.defaults import Filled
from fourfold.validate.row import Row

_CLAUSES = re.compile(r"[;,\n]|\.\s|: (?=\w)")
_DENIED = re.compile(
    r"\b(no|not|non|without|off|false|disabled?|none|never|unknown|unclear|unstated|possible|optional|left out|leaves out|omitted"
    r"|excluded|skipped|uncertain|rather than|instead of)\b|= ?0\b|\?"
)


def asserted(text: str, pattern: str) -> list[str]:
    """The clauses that say so, lower case: those that have the pattern, and no word that denies it or leaves it open."""
    clauses = _CLAUSES.split(text.lower())
    return [clause for clause in clauses if re.search(pattern, clause) and not _DENIED.search(clause)]


def check_task(row: Row, filled: Filled) -> None:
    """Raises `Untranslatable` for what is no step of pretraining."""
    text = "; ".join((row.task or "", row.notes, row.precision or ""))
    if row.analytical:
        raise Untranslatable("the values of a formula, not a measurement")
    if asserted(text, r"\blora\b|\bpeft\b|adapter"):
        raise Untranslatable("adapters (LoRA) are trained, not the model")
    if asserted(text, "microbenchmark"):
        raise Untranslatable("one layer alone, not a step")
    if asserted(text, r"\binference\b|\bserving\b|decode only|\bprefill\b"):
        raise Untranslatable("inference, not training")
    if row.model.num_experts and re.search(r"\bunbalanced routing", text, re.I):
        raise Untranslatable("its routing is left unbalanced, and the loads are not stated")
    if re.search(r"\bsft\b|finetun|fine-tun", row.task or "", re.I):
        filled.approximate("sft")
    if (row.task or "").startswith("optimizer"):
        filled.approximate("optimizer")
    if row.model.num_experts and re.search(r"token ?-?drop|capacity[- ]factor", text, re.I):
        filled.approximate("tokens_dropped")


_HELD_BY_HOST = (
    r"kept in (the )?host|\(in host memory\)|activations? offload|offload\w* (of )?activations|inputs? offload"
)


def offloaded_of(row: Row, filled: Filled) -> Offloaded | None:
    """What lies in the host's memory. Raises `Untranslatable` where parameters do, or nobody knows what."""
    policy = row.recompute or ""
    text = "; ".join((policy, row.notes, row.precision or "", row.task or ""))
    said = [
        clause for clause in asserted(text, "offload") if not re.search(r"sparsecore|collective|communicat", clause)
    ]
    found: Offloaded | None = None
    if asserted(text, _HELD_BY_HOST) or asserted(policy, "offload"):
        found = "activations"
    elif said:
        if not all(
            re.search(r"optimi[sz]er|moments|states", clause) and not re.search("param|infinity", clause)
            for clause in said
        ):
            raise Untranslatable("state is offloaded to the host, which is not simulated")
        found = "optimizer"
    if found is not None:
        filled.approximate(f"offload_{found}")
    return found


def is_dispatched_once(row: Row) -> bool | None:
    """Whether the row says that its experts' tokens go once to every node, or not."""
    if re.search(r"all-?to-?all dispatcher|(without|no|not) deepep|deepep (is )?(off|not)", row.notes, re.I):
        return False
    return True if re.search(r"deepep|hybrid-?ep", f"{row.notes} {row.source}", re.I) else None


def is_mlperf(row: Row) -> bool:
    """Whether it is a result of MLPerf Training: tuned as far as a maker can."""
    return bool(re.search(r"mlperf|mlcommons/training_results|training_results_v\d", row.source, re.I))


_PARTLY = r"attention|\battn|router|norm|layers? alone|partial"


def is_graphed(row: Row, filled: Filled) -> bool:
    """Whether a step's kernels are started as one graph, all of them."""
    said = asserted(
        f"{row.notes}; {row.source}", r"\b(cuda|hip|full|full[- ]iteration|iteration)[- ]?graphs?\b|step as one graph"
    )
    if not any(not re.search(_PARTLY, clause) for clause in said) and not is_mlperf(row):
        return False
    filled.approximate("graphs")
    return True


_CHUNKED = re.compile(r"\bliger\b|chunked (cross|loss|ce\b)|fused linear cross", re.I)


def is_loss_chunked(row: Row) -> bool:
    """Whether the logits of a few tokens are made at a time."""
    return bool(_CHUNKED.search(row.notes))


_EAGER = re.compile(
    r"compile (is )?off|(no|without) (torch\.)?compile\b(?! (said|stated))|compile not set|not compiled|\beager\b(?! att)",
    re.I,
)


def is_eager(row: Row, filled: Filled) -> bool:
    """Whether one operator runs after the other, as eager torch does."""
    if not _EAGER.search(row.notes):
        return False
    filled.approximate("eager")
    return True
