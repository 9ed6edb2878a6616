"""Free text of a published row: remarks on its run beside the settings that have a field of their own."""

import re

from assertions import asserted, clauses_of, says
from case import NotACase, Offloaded
from defaults import ImputedDefaults
from fourfold.config.kernel_choice import Dispatcher
from fourfold.cost.kernel_choice import BLACKWELL, HOPPER
from row import Row
from software import Trainer


def check_task(row: Row, imputed: ImputedDefaults) -> None:
    """Raises `NotACase` for what is no step of pretraining."""
    text = "; ".join((row.task or "", row.notes, row.precision or ""))
    adapters = r"\bq?lora\b|\bpeft\b|adapter"
    if row.analytical:
        raise NotACase("the values of a formula, not a measurement")
    if re.search(adapters, row.task or "", re.I) or asserted(text, adapters):
        raise NotACase("adapters (LoRA) are trained, not the model")
    if asserted(text, "microbenchmark"):
        raise NotACase("one layer alone, not a step")
    if asserted(text, r"(?<!by )\binference\b|\bserving\b|decode only|\bprefill\b"):
        raise NotACase("inference, not training")
    if row.model.num_experts and re.search(r"\b(unbalanced|natural) routing", text, re.I):
        raise NotACase("its routing is left unbalanced, and the loads are not stated")
    if re.search(r"\bsft\b|finetun|fine-tun", row.task or "", re.I):
        imputed.approximate("sft")
    if (row.task or "").startswith("optimizer"):
        imputed.approximate("optimizer")
    if row.model.num_experts and re.search(r"token ?-?drop|capacity[- ]factor", text, re.I):
        imputed.approximate("tokens_dropped")


_OF_OPTIMIZER = r"optimi[sz]er|moments|states"
_HELD_BY_HOST = (
    r"(kept|held|checkpoints|activations) (in|on) (the )?host|\(in host memory\)|activations? offload"
    r"|offload\w* (of )?activations|inputs? offload"
)


def recomputes_what_is_not_offloaded(policy: str) -> bool:
    """Whether a policy of recomputation keeps something in the host's memory, and the rest is made again."""
    return any(not re.search(_OF_OPTIMIZER, clause) for clause in asserted(policy, "offload"))


def offloaded_of(row: Row, imputed: ImputedDefaults) -> Offloaded | None:
    """The part of the state in the host's memory. Raises `NotACase` where parameters do, or nobody knows what."""
    policy = row.recompute or ""
    text = "; ".join((policy, row.notes, row.precision or "", row.task or ""))
    stated = [
        clause for clause in asserted(text, "offload") if not re.search(r"sparsecore|collective|communicat", clause)
    ]
    found: Offloaded | None = None
    if asserted(text, _HELD_BY_HOST) or recomputes_what_is_not_offloaded(policy):
        found = "activations"
    elif stated:
        if not all(
            re.search(_OF_OPTIMIZER, clause) and not re.search("(?<!not )param|infinity", clause) for clause in stated
        ):
            raise NotACase("state is offloaded to the host, which is not simulated")
        found = "optimizer"
    if found is not None:
        imputed.approximate(f"offload_{found}")
    return found


def dispatcher_of(row: Row) -> Dispatcher | None:
    """The dispatcher of tokens to experts, where the row names it."""
    if re.search(
        r"all-?to-?all dispatcher|dispatcher[:=]? (is |the |nccl )*all-?to-?all|(without|no|not) deepep|deepep (is )?(off|not)",
        row.notes,
        re.I,
    ):
        return "alltoall"
    named = re.search(r"(hybrid-?|deep)ep\b", f"{row.notes} {row.source}", re.I)
    if named is None:
        return None
    return "deepep" if named[1].lower() == "deep" else "hybridep"


_EXCHANGE = r"\bep\b|expert|\bmoe\b|\ba2a\b|all-?to-?all|dispatch"


def are_experts_fused(row: Row) -> bool:
    """Whether the row says that what lies between two products of experts is part of their kernels."""
    return bool(asserted(row.notes, r"\bfused grouped mlp|cute[- ]?dsl|\bop[- ]fuser"))


def runs_transformer_engine(row: Row) -> bool:
    """Whether its products are said to be Transformer Engine's, which keep what they read in their format for backward."""
    return bool(asserted(f"{row.framework}; {row.notes}", r"transformer[- ]?engine|\bte\b"))


MERGED_SINCE = (2026, 6)
"""Releases of Megatron Bridge whose recipes for experts in MXFP8 have it so."""


def are_experts_merged(row: Row, trainer: Trainer, low: str | None, imputed: ImputedDefaults) -> bool:
    """Whether what goes to experts runs beside another microbatch's computation: where the row says so, or is silent and its
    recipe does."""
    text = f"{row.notes}; {row.schedule or ''}"
    spoken = [clause for clause in clauses_of(text) if re.search(r"\boverlap", clause) and _is_exchange(clause)]
    usual = trainer.framework == "nemo" and (trainer.year, trainer.release) >= MERGED_SINCE and low == "mxfp8"
    if not (all(says(clause, r"\boverlap") for clause in spoken) if spoken else usual and row.model.num_experts):
        return False
    imputed.approximate("merged_experts")
    return True


def _is_exchange(clause: str) -> bool:
    """Whether it speaks of what goes to experts in this run."""
    return bool(re.search(_EXCHANGE, clause)) and not re.search(r"shared[- ]expert|\b(when|if|once|would)\b", clause)


def is_mlperf(row: Row) -> bool:
    """Whether it is a result of MLPerf Training: tuned as far as a maker can."""
    return bool(re.search(r"mlperf|mlcommons/training_results|training_results_v\d", row.source, re.I))


_GRAPHS = r"\b(cuda|hip|full[- ]iteration|iteration)[- ]?graphs?\b|step as one graph"
_PARTLY = r"attention|\battn|router|\bmoe\b|\bmlp\b|norm|dense parts|layers? alone|per[- ]layer|partial"


def is_graphed(row: Row, device: str, imputed: ImputedDefaults) -> bool:
    """Whether a step's kernels are started as one graph, all of them."""
    text = f"{row.notes}; {row.source}"
    stated = asserted(text, _GRAPHS)
    usual = is_mlperf(row) and device.startswith((*HOPPER, *BLACKWELL)) and not re.search(_GRAPHS, text, re.I)
    if not (any(not re.search(_PARTLY, clause) for clause in stated) if stated else usual):
        return False
    imputed.approximate("graphs")
    return True


_EAGER = re.compile(
    r"compile (is )?off|(no|without) (torch\.)?compile\b(?! (said|stated))|compile not set|not compiled|\beager\b(?! att)",
    re.I,
)


def is_eager(row: Row, trainer: Trainer, imputed: ImputedDefaults) -> bool:
    """Whether one operator runs after the other, as eager torch does: not with Megatron's kernels or Liger's, nor where
    XLA made them."""
    if (
        not _EAGER.search(row.notes)
        or trainer.is_megatron_family
        or trainer.is_xla
        or asserted(row.notes, r"\bliger\b")
    ):
        return False
    imputed.approximate("eager")
    return True
