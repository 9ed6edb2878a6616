"""The end of a training: what a finished run does beside its last save, none of which can make it a failure.

Once the last checkpoint is saved, the run has finished and says so. The rest (copies that are on their way, the sample) may
fail, or be slow as the model is large: a message tells it.
"""

import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from fourfold.config import ModelConfig, RunConfig, RunFailure
from fourfold.config.errors import error_text
from fourfold.huggingface import resolve_model
from fourfold.model.counts import num_parameters
from fourfold.runtime.progress import ENDED, ProgressBoard
from fourfold.train.metrics import RunLog, append_event
from fourfold.train.peer_memory import PeerMemory
from fourfold.train.session import choose_device
from fourfold.train.state import run_stage

USUAL_TOKENS, UNASKED_PARAMETERS = 200, 1_000_000_000
"""Tokens of a sample that nobody asked for, and parameters of the largest model that writes one then."""
SAMPLE_SECONDS = 120.0
"""Time that a sample may take; one that takes longer is cut there."""
_PROMPT = "def "


def end_training(
    log: RunLog | None, board: ProgressBoard, memory: PeerMemory | None, step: int, validation_loss: float | None
) -> None:
    """The last words of a rank whose run has finished; with `log` None, whose launch goes on with other ranks. `log`: rank 0's;
    `memory`: its copies, which peers may still read."""
    board.enter(ENDED, step)  # nobody waits for this rank any more, and nobody watches it
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if log is not None:
        log.event("finish", step=step, validation_loss=validation_loss, max_rss_bytes=rss)
    try:
        if memory is not None:
            memory.wait()
    except Exception as error:
        if log is not None:
            log.event("memory_failed", step=step, message=f"{error_text(error)}; the run is saved on disk")


def tokens_at_end(config: RunConfig, model: ModelConfig) -> tuple[int, str]:
    """Tokens of the sample that a training writes when it has finished, and why there are none where nobody forbade them."""
    if config.run.sample_tokens is not None:
        return config.run.sample_tokens, ""
    if (size := num_parameters(model)) <= UNASKED_PARAMETERS:
        return USUAL_TOKENS, ""
    return 0, (
        f"the model has {size / 1e9:.3g} B parameters, more than {UNASKED_PARAMETERS / 1e9:g} B, so it is not read again to write "
        f"one; run.sample_tokens = {USUAL_TOKENS} asks for it"
    )


def sample_at_end(out: Path) -> None:
    """Adds the event `sample` to a run that has finished. Whatever goes wrong is a message there: the run has finished all the
    same. The process ends, as finished, where this takes more than `SAMPLE_SECONDS` and the answer of a disk or device."""
    with _bounded(2 * SAMPLE_SECONDS), suppress(OSError, RunFailure):
        try:
            config = run_stage(out)[1].config
            device = choose_device(config.run)
            gc.collect()
            if device.type == "cuda":  # what the step held makes room
                torch.cuda.empty_cache()
            tokens, reason = tokens_at_end(config, resolve_model(config.model))
            if tokens:
                from fourfold.train.sample import generate

                text = generate(out, _PROMPT, tokens, 0.8, config.run.seed, device=device, seconds=SAMPLE_SECONDS)
                append_event(out, "sample", text=text)
                return
        except Exception as error:
            reason = error_text(error)
        if reason:
            append_event(out, "sample", message=f"{reason}; this writes one: fourfold sample {out}")


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Ends the process, as finished, where the block takes longer."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
