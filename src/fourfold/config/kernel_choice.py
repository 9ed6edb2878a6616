"""Words for the kernels of some software and what runs beside them: those of a run file, of a case, of a command's option."""

from collections.abc import Sequence
from typing import Literal, get_args

from fourfold.config.errors import UserError, did_you_mean
from fourfold.config.section import Section

AttentionChoice = Literal["flash", "flash-1", "flash-2", "flash-3", "cudnn", "unfused", "recomputed", "math"]
FusedChoice = Literal["fused", "unfused"]
LossChoice = Literal["fused", "unfused", "chunked"]
OptimizerChoice = Literal["fused", "foreach", "for-loop"]
CollectivesChoice = Literal["exposed", "overlapped"]
LaunchesChoice = Literal["single", "graph"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
"""Token dispatch to experts and back. `alltoall`: one copy for each expert. `deepep`: one to every node and rank that has
experts of its, by kernels that read and write the tokens where they are (DeepEP, 2025). `hybridep`: so, and sorted by expert on the
way (HybridEP, 2026)."""


class KernelChoice(Section):
    """Kernels that predictions take of other software than fourfold, whose own program says what runs."""

    attention: AttentionChoice | None = None
    """Attention: `flash-1`, `flash-2`, `flash-3` or `cudnn`, a fused kernel; `flash`: that of the software; `unfused`: the matrix
    of scores is written and saved, as before 2022; `recomputed`: it is written, and again in the backward; `math`: it is written
    in fp32, by torch's own operators. Left out: as the software and its year usually have it."""
    norms: FusedChoice | None = None
    """Norms, each pass over a token's numbers: one kernel, or one operator after the other. Left out: as the software usually has
    it."""
    softmax: FusedChoice | None = None
    """Scale, mask and softmax of a matrix of scores that is written: one kernel, or one operator after the other. Left out: as the
    software usually has it."""
    loss: LossChoice | None = None
    """Cross-entropy: `fused`, its gradient stands where the logits stood; `unfused`, operator by operator on a copy in fp32;
    `chunked`, the logits of a few tokens at a time. Left out: as the software usually has it."""
    rotary: FusedChoice | None = None
    """Rotary embedding: one kernel, or one operator after the other. Left out: as the software usually has it."""
    optimizer: OptimizerChoice | None = None
    """Update of the parameters: `fused`, one kernel; `foreach`, each operator over all tensors at once; `for-loop`, each operator
    of each tensor. Left out: as the software usually has it."""
    tp_collectives: CollectivesChoice | None = None
    """Gathers and reductions of tensor parallelism in a block: `exposed`, waited for; `overlapped`, part by part beside a matmul
    (Megatron's `tp_comm_overlap`, torchtitan's asynchronous tensor parallelism). Left out: as the software usually has it."""
    dispatcher: Dispatcher | None = None
    """Dispatch of tokens to experts: `alltoall`, one copy for each expert; `deepep`, one for each rank that has experts of its;
    `hybridep`, so, and sorted by expert on the way. Left out: as the software usually has it."""
    ep_collectives: CollectivesChoice | None = None
    """Dispatch to experts and back: `exposed`, waited for; `overlapped`, half of it beside the computation of another microbatch.
    Left out: as the software usually has it."""
    experts: FusedChoice | None = None
    """Kernels between two grouped matmuls of experts, in formats with a scale a block: `fused` into these, or `unfused`. Left out:
    as the software usually has it."""
    launches: LaunchesChoice | None = None
    """How the host starts the kernels of a step: `single`, one by one; `graph`, all as one CUDA graph. Left out: one by one, or as
    `run.cuda_graphs` says."""

    @property
    def stated(self) -> dict[str, str]:
        """The words that are stated, by their key."""
        return {key: word for key in KernelChoice.model_fields if (word := getattr(self, key)) is not None}

    @property
    def text(self) -> str:
        """The words as an option has them: `norms=unfused,optimizer=foreach`."""
        return ",".join(f"{key}={word}" for key, word in self.stated.items())

    def completed(self, other: "KernelChoice") -> "KernelChoice":
        """A copy with those of `other` where nothing is stated here."""
        return KernelChoice.model_validate({**other.stated, **self.stated})


NO_CHOICE = KernelChoice()
CHOICES: dict[str, tuple[str, ...]] = {
    key: get_args(get_args(field.annotation)[0]) for key, field in KernelChoice.model_fields.items()
}
"""The words of each key."""


def parse_choice(texts: Sequence[str]) -> KernelChoice:
    """The words of options: `norms=unfused,optimizer=foreach`. Raises `UserError`."""
    found = dict[str, str]()
    for text in (part for each in ([texts] if isinstance(texts, str) else texts) for part in each.split(",")):
        key, _, word = (side.strip() for side in text.partition("="))
        if key not in CHOICES:
            hint = did_you_mean(key, list(CHOICES))
            raise UserError(
                f"--kernels {text[:100]}: no such key; {hint}allowed: {', '.join(CHOICES)}; a value that works: attention=flash-2"
            )
        if word not in CHOICES[key]:
            words = CHOICES[key]
            hint = did_you_mean(word, list(words))
            raise UserError(
                f"--kernels {text[:100]}: {hint}allowed: {', '.join(words)}; a value that works: {key}={words[:3][-1]}"
            )
        found[key] = word
    return KernelChoice.model_validate(found)
