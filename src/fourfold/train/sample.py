"""Text from a trained model: one process, the latest checkpoint, token by token."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from fourfold.checkpoint import newest_readable
from fourfold.config import RunFailure, UserError
from fourfold.data.prepared import open_prepared
from fourfold.huggingface import resolve_model
from fourfold.train.generator import CPU, Generator
from fourfold.train.state import run_data, run_stage, saved_steps


def generate(
    run: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
    report: Callable[[str], None] = lambda text: None,
    device: torch.device = CPU,
    seconds: float = float("inf"),
) -> str:
    """`prompt` and up to `tokens` tokens after it, from a run folder's latest readable checkpoint; stops at an end of text, and
    after so many `seconds`.

    `temperature` 0 takes the likeliest token each time. `report` is told of later checkpoints that cannot be read.
    """
    if temperature < 0:
        raise UserError(f"--temperature = {temperature} is negative; a value that works: 0.8")
    begun = time.monotonic()
    config = run_stage(run)[1].config
    model = resolve_model(config.model)
    reader = newest_readable(saved_steps(config, run), report)
    if reader is None:
        raise RunFailure(f"{run}: has no checkpoint that can be read; let the run reach its next save")
    where = run_data(run).get("prepared")
    if not isinstance(where, str):
        raise RunFailure(
            f"{run / 'data.json'}: does not say where the run's data are; train the run on, which mends it"
        )
    prepared = open_prepared(where)
    tokenizer = prepared.load_tokenizer()
    most = config.batch.sequence_length
    generator = Generator(model, reader, most, device)
    rng = torch.Generator().manual_seed(seed)
    ids = [*(prepared.bos or (tokenizer.eos,)), *tokenizer.encode_batch([prompt])[0].tolist()]
    start = len(ids)
    while len(ids) < start + tokens and (len(ids) == start or time.monotonic() - begun < seconds):
        logits = generator.logits(ids[-most:])[: tokenizer.vocab_size].cpu()
        if not torch.isfinite(logits).all():
            raise RunFailure(
                f"{reader.path}: the model's logits are not finite; train another run with a smaller optimizer.lr"
            )
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            chosen = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=rng))
        if chosen == tokenizer.eos and len(ids) > start:
            break
        ids.append(chosen)
    return tokenizer.decode(ids[len(prepared.bos) or 1 :])
