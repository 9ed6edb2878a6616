"""Kernels that software usually runs, and the price of others in their place, which a run states in a word each.

The constants of a software profile were fitted to runs of its usual kernels (`kernel_choice.toml`, by family, device and year), so
a word that says what is usual changes nothing. Another word changes what it names:

- attention by the ratio of the kernels' speeds (`SPEEDS`). FlashAttention reaches 124 TFLOP/s on A100 at most, FlashAttention-2
  230 (Dao 2023, arXiv 2307.08691); FlashAttention-3 is 1.5 to 2.0 times as fast as that forward on H100 and 1.5 to 1.75 times
  backward (Shah et al. 2024, arXiv 2407.08608, section 4.1), cuDNN's kernel about as fast;
- norms, rotary embedding and loss by their bytes and launches: those of the operators, as the program records them, or those of one
  kernel, in place of the mix between the two that `fused` is;
- the softmax of written scores by the passes over them (`PASSES`);
- the update by its passes over an element (`UPDATE_PASSES`) and its launches;
- the logits' memory by what lives of each (`LOGITS_BYTES`);
- collectives of `tp` and `ep` by what of them runs beside computation (`cost.prices`), a dispatcher by what it sends and sorts, a
  graph by the host's time, of which it takes none. The usual words for these are the profile's own (`SoftwareProfile.words`).
"""

import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from fourfold.config import UserError
from fourfold.config.kernel_choice import KernelChoice
from fourfold.cost.fitted import ancestors_of, fitted, year_of
from fourfold.cost.software import SoftwareProfile
from fourfold.model.work import ElementwisePart

HOPPER, BLACKWELL = ("h100", "h200", "h800", "gh200", "h20"), ("b200", "b300", "gb200", "gb300")
"""Generations of devices, by the beginning of their keys."""
SPEEDS = {"flash-1": 124 / 230, "flash-2": 1.0, "flash-3": 1.75, "cudnn": 1.75}
"""Speeds of fused attention beside FlashAttention-2's; of the last two on Hopper and Blackwell, elsewhere cuDNN's is as fast."""
REACHED = {
    HOPPER: {"flash-2": 0.95, "flash-3": 1.6, "cudnn": 1.6},
    BLACKWELL: {"flash-2": 0.45, "flash-3": 1.6, "cudnn": 1.6},
}
"""Speeds beside the device's constant that runs reached which name their kernel (TRL at a million tokens on H100, 1.75 x apart;
65,536 on B200): a family's mean may have lesser kernels in it."""
WRITTEN = ("unfused", "recomputed", "math")
UNFUSED_PASSES, MATH_PASSES = (16.0, 18.0), (8.0, 9.0)
"""How often written scores are read or written where the softmax is not one kernel, forward and backward: in 16 bits product,
scale, mask, to fp32, softmax (twice the bytes), back, product; and in fp32 (`math`) without the conversions."""
UPDATE_PASSES = 20 / 7
"""Numbers that the operators of AdamW move for each element, beside one kernel: decay 2, first moment 3, second 2 + 3, root 2,
correction 2, epsilon 2, step 4; one kernel reads four and writes three."""
UPDATE_OPERATORS = 8
TENSORS = 9
"""Tensors of a block: five to seven matrices, two norms, and biases or none."""
LOGITS_BYTES = {"fused": 6.0, "unfused": 12.0, "chunked": 1.0}
"""Live bytes of a logit of a microbatch: in 16 bits, and in fp32, where its gradient is made over it; in 16 bits, its log-softmax
and the gradient of that in fp32, and in 16 bits; one in sixteen, with its gradient, in fp32."""
REPLAYED = KernelChoice(launches="graph")
_PARTS: dict[str, ElementwisePart] = {"norms": "norm", "rotary": "rotary", "loss": "loss"}


@dataclass(frozen=True)
class _Usual:
    """A row of the table."""

    software: str
    words: KernelChoice
    source: str
    devices: tuple[str, ...] = ()
    until: int | None = None

    def holds(self, families: list[str], year: int | None, device: str) -> bool:
        """Whether it speaks of such a run."""
        dated = self.until is None or (year is not None and year <= self.until)
        return self.software in families and dated and (not self.devices or device.startswith(self.devices))


@lru_cache(maxsize=1)
def _table() -> tuple[_Usual, ...]:
    text = (resources.files("fourfold.cost") / "kernel_choice.toml").read_text(encoding="utf-8")
    return tuple(_row(each) for each in tomllib.loads(text)["usual"])


def _row(row: dict[str, Any]) -> _Usual:
    words = KernelChoice.model_validate({key: row[key] for key in KernelChoice.model_fields if key in row})
    return _Usual(row["software"], words, row["source"], tuple(row.get("devices", ())), row.get("until"))


@lru_cache(maxsize=256)
def usual_kernels(software: str, device: str) -> KernelChoice:
    """The kernels that software of that name, which may be dated, usually runs on such a device: a word for each key."""
    found, families = fitted().software(software).words, ["default", *ancestors_of(software)]
    for row in _table():
        if row.holds(families, year_of(software), device):
            found = row.words.completed(found)
    return found


def kernels_of(profile: SoftwareProfile, words: KernelChoice, device: str) -> KernelChoice:
    """All words of a run: the stated ones, and the usual ones of its software."""
    usual = usual_kernels(profile.base or profile.name, device)
    found = words.completed(profile.words).completed(usual)
    is_usual = found.attention == "flash" and usual.attention not in WRITTEN
    return found.model_copy(update={"attention": usual.attention}) if is_usual else found


def check_kernels(words: KernelChoice, device: str) -> None:
    """Raises `UserError` for a kernel that the device does not have."""
    if words.attention == "flash-3" and not device.startswith((*HOPPER, *BLACKWELL)):
        raise UserError(
            f"attention = 'flash-3': made for Hopper and devices after it, and {device} is none; allowed there: flash, flash-1, "
            "flash-2, cudnn, unfused, recomputed, math; a value that works: flash-2"
        )


def running(profile: SoftwareProfile, words: KernelChoice, device: str, graphs: bool = False) -> SoftwareProfile:
    """A profile that runs these kernels on a device of that key; as it is where they are its usual ones. `graphs`: the run says
    that its steps are graphs (`run.cuda_graphs`); a word wins."""
    words = words.completed(REPLAYED) if graphs else words
    name = profile.base or profile.name
    usual, found = usual_kernels(name, device), kernels_of(profile, words, device)
    profile = _attending(replace(profile, kernels=tuple(found.stated.items())), found, usual, device)
    parts = {_PARTS[key]: word for key, word in found.stated.items() if key in _PARTS and word != getattr(usual, key)}
    if found.loss == "chunked":
        parts.pop("loss", None)
    profile = replace(profile, fused_parts=tuple((part, word == "fused") for part, word in sorted(parts.items())))
    if found.loss != usual.loss and profile.unchunked_head:
        bytes_, least = LOGITS_BYTES[found.loss or "fused"], found.loss != "unfused"
        profile = replace(profile, logits_bytes=(min if least else max)(profile.logits_bytes, bytes_))
    if found.optimizer in ("foreach", "for-loop") and found.optimizer != usual.optimizer:
        tensors = TENSORS if found.optimizer == "for-loop" else 1
        passes = UPDATE_PASSES if usual.optimizer == "fused" else 1.0
        profile = replace(profile, update_passes=passes, update_launches=UPDATE_OPERATORS * tensors)
    hides_dispatch = found.ep_collectives == "overlapped"
    profile = replace(
        profile,
        overlap_tensor=found.tp_collectives == "overlapped",
        dispatcher=found.dispatcher or profile.dispatcher,
        merged_experts=hides_dispatch and not profile.overlap_experts,
        overlap_experts=hides_dispatch and profile.overlap_experts,
        fused_experts=found.experts == "fused",
    )
    return profile.without_host if found.launches == "graph" else profile


def _attending(profile: SoftwareProfile, words: KernelChoice, usual: KernelChoice, device: str) -> SoftwareProfile:
    written = words.attention in WRITTEN
    profile = replace(profile, fused_attention=not written)
    if written:
        unfused = words.softmax == "unfused" and usual.softmax != "unfused"
        passes = MATH_PASSES if words.attention == "math" else UNFUSED_PASSES
        again = profile.attention_recomputed or words.attention == "recomputed"
        return replace(
            profile,
            attention_recomputed=again,
            fp32_scores=words.attention == "math",
            written_passes=passes if unfused else profile.written_passes,
        )
    if words.attention in SPEEDS and usual.attention in SPEEDS:
        ratio = _speed(words.attention, device) / _speed(usual.attention, device)
        if ratio != 1:
            return replace(profile, attention_speed=_changed(profile.attention_speed, ratio, words.attention, device))
    return profile


def _changed(usual: float, ratio: float, kernel: str, device: str) -> float:
    """A family's speed of attention with another kernel. One that is slower makes nothing faster."""
    reached = next((each for key, each in REACHED.items() if device.startswith(key)), {}).get(kernel, 0.0)
    speed = max(usual * ratio, reached)
    return speed if ratio > 1 else min(usual, speed)


def _speed(kernel: str, device: str) -> float:
    return SPEEDS[kernel] if device.startswith((*HOPPER, *BLACKWELL)) else min(1.0, SPEEDS[kernel])
