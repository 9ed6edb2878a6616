"""A rank without memory, in an instruction or around the steps: where it stood, what it was predicted to need, and which keys need
less."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from fourfold.config import FinalFailure, RunConfig, UserError
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import Program, StepSpec, lower_pipeline, memory_peak, resolve_step
from fourfold.program.spec import transport_on
from fourfold.runtime.step import StepFailure
from fourfold.train.session import RankContext

SAVES_ENOUGH = 0.9
"""Advice needs at most this share of the peak for which there was no room."""
_ONE_BY_ONE: tuple[Mapping[str, Any], ...] = (
    {"zero": 1},
    {"zero": 2},
    {"zero": 3},
    {"microbatch_sequences": 1},
    {"recompute": "full"},
    {"offload_optimizer": True},
)
_TOGETHER: tuple[Mapping[str, Any], ...] = (
    {"zero": 3, "microbatch_sequences": 1},
    {"zero": 3, "recompute": "full"},
    {"zero": 3, "microbatch_sequences": 1, "recompute": "full"},
    {"zero": 3, "microbatch_sequences": 1, "recompute": "full", "offload_optimizer": True},
)


def out_of_memory(
    error: StepFailure, program: Program, config: RunConfig, spec: StepSpec, context: RankContext, step: int
) -> FinalFailure:
    """The failure of a rank whose instruction found no memory. Ranks that are started again would meet it again."""
    peak, index = memory_peak(program), error.index
    _, cure = _need_and_cure(config, spec, program.kind)
    return FinalFailure(
        f"rank {context.rank} ran out of memory at step {step} #{index} `{program.instructions[index].short}`: predicted peak "
        f"{_size(peak.bytes)} at #{peak.index} `{program.instructions[peak.index].short}`{_measured(context.device)} "
        f"[{_asked(error)}]; {cure}"
    )


def out_of_memory_around(error: Exception, config: RunConfig, context: RankContext) -> FinalFailure:
    """The failure of a rank that found no memory before its first step, between two, or after its last: for a trial, its weights, a
    copy of them."""
    model = resolve_model(config.model)
    layout = resolve_layout(config, model, context.world_size)
    spec = resolve_step(config, model, layout, transport_on(context.device.type))
    need, cure = _need_and_cure(config, spec, "train")
    return FinalFailure(
        f"rank {context.rank} ran out of memory around its steps: a step's predicted peak {_size(need)}"
        f"{_measured(context.device)} [{_asked(error)}]; {_held_by_others(context.device)}{cure}"
    )


def _asked(error: Exception) -> str:
    """The words of an allocator as far as its request. CUDA's go on about the device, whose figures the message has."""
    line = str(error).splitlines()[0]
    asked = re.match(r".*?Tried to allocate [\d.]+ \w+\.", line)
    return asked.group() if asked is not None else line


def _held_by_others(device: torch.device) -> str:
    """Advice where other processes have more than a tenth of the device's memory."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    held = total - free - torch.cuda.memory_reserved(device)
    return f"end the other processes on it, which hold {_size(held)}, or: " if held > total // 10 else ""


def _need_and_cure(config: RunConfig, spec: StepSpec, kind: str) -> tuple[int, str]:
    """The predicted peak, and the first change of the layout with which it is clearly smaller."""
    need = _predicted(spec, kind)
    for change, peak in _peaks(config, spec, kind):
        if peak <= SAVES_ENOUGH * need:
            keys = " ".join(f"layout.{key}={_word(value)}" for key, value in change.items())
            return need, f"with {keys} the predicted peak is {_size(peak)}"
    more = "more ranks do, or a shorter batch.sequence_length"
    return need, f"no key of the layout alone needs much less on so many ranks: {more}"


def _peaks(config: RunConfig, spec: StepSpec, kind: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    ranks = spec.layout.world_size
    half = {"microbatch_sequences": max(1, spec.layout.microbatch_sequences // 2)}
    for change in (half, *_ONE_BY_ONE, *_TOGETHER):
        section = config.layout.model_copy(update=dict(change))
        if section == config.layout:
            continue
        with suppress(UserError):  # not of this model, batch or schedule
            layout = resolve_layout(config.model_copy(update={"layout": section}), spec.model, ranks)
            yield change, _predicted(resolve_step(config, spec.model, layout, spec.transport), kind)


def _predicted(spec: StepSpec, kind: str) -> int:
    """The peak of the rank that needs most."""
    return max(memory_peak(program).bytes for program in lower_pipeline(spec, kind))


def _measured(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.max_memory_allocated(device)
    return f"; allocated {_size(own)} at most, {_size(free)} of the device's {_size(total)} are free"


def _size(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.2f} MB"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
