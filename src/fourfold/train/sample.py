"""Text from a trained model: one process, the latest checkpoint, token by token."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fourfold.checkpoint import ParameterReader, newest_readable
from fourfold.checkpoint.unit_shard import balance_bias_extra
from fourfold.config import ModelConfig, RunFailure, UserError, load_run
from fourfold.data.prepared import open_prepared
from fourfold.huggingface import resolve_model
from fourfold.model import torch_operations
from fourfold.model.binding import bind_weights
from fourfold.model.block import block_forward
from fourfold.model.embedding import embedding_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.head import head_logits
from fourfold.model.rope_tables import rope_tables
from fourfold.model.spec import ParameterSpec, build_segments
from fourfold.model.weights import BlockWeights, EmbeddingWeights, FlatUnit, HeadWeights, OwnWeights
from fourfold.train.state import run_data, saved_steps


class Generator:
    """A full model in one process, for sampling; fp32."""

    def __init__(self, model: ModelConfig, reader: ParameterReader) -> None:
        self._model = model = replace(model, capacity_factor=None, mtp_layers=0)
        segments = build_segments(model)
        units = {}
        for unit in (unit for segment in segments for unit in segment.own):
            flat = torch.cat([_read(reader, spec).float().reshape(-1) for spec in unit.parameters])
            units[unit.name] = FlatUnit(unit.parameters, flat, flat)
        self._weights = [bind_weights(segment, model, units) for segment in segments]
        names = [balance_bias_extra(segment.layer or 0) for segment in segments if segment.kind == "block"]
        self._biases = [reader.extra(name).float() if name in reader.extras else None for name in names]

    @torch.no_grad()
    def next_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the token after `tokens` [seq] -> [vocab]."""
        cos, sin = rope_tables(self._model, len(tokens), torch.float32, tokens.device)
        batch = Microbatch(tokens.unsqueeze(0), tokens, cos.unsqueeze(-2), sin.unsqueeze(-2))
        embedding, *blocks, head = self._weights
        assert isinstance(embedding, EmbeddingWeights)
        assert isinstance(head, HeadWeights)
        env = Environment(torch_operations, self._model)
        x = embedding_forward(env, batch.tokens, embedding, torch.arange(len(tokens)).unsqueeze(0))
        for block, bias in zip(blocks, self._biases, strict=True):
            assert isinstance(block, BlockWeights | OwnWeights)
            balancing = Balancing(1, len(tokens), 1, bias=bias)
            x = block_forward(env, x, block, batch, Saved(keeps=False), balancing)
        return head_logits(env, x[-1:], head)[0]


def _read(reader: ParameterReader, spec: ParameterSpec) -> torch.Tensor:
    """A parameter. Raises `RunFailure` where the checkpoint is of another model."""
    if (there := reader.shapes.get(spec.name)) != spec.shape:
        found = f"of {list(there)}" if there is not None else "nowhere"
        raise RunFailure(
            f"{reader.path}: holds {spec.name} {found}, run.toml says {list(spec.shape)}; put the run's own run.toml back"
        )
    return reader.get(spec.name)


def generate(
    run: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
    report: Callable[[str], None] = lambda text: None,
) -> str:
    """`prompt` and up to `tokens` tokens after it, from a run folder's latest readable checkpoint; stops at an end of text.

    `temperature` 0 takes the likeliest token each time. `report` is told of later checkpoints that cannot be read.
    """
    if temperature < 0:
        raise UserError(f"--temperature = {temperature} is negative; a value that works: 0.8")
    config = load_run(run / "run.toml", as_written=True)
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
    generator = Generator(model, reader)
    rng = torch.Generator().manual_seed(seed)
    ids = [*(prepared.bos or (tokenizer.eos,)), *tokenizer.encode_batch([prompt])[0].tolist()]
    start = len(ids)
    for _ in range(tokens):
        logits = generator.next_logits(torch.tensor(ids[-config.batch.sequence_length :]))[: tokenizer.vocab_size]
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
