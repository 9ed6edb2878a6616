"""Keys that decide a large run and may not be left to a default: its text, its tokenizer, its learning rate and warm-up.

Defaults are there for runs of minutes. A run of more than `LARGE` parameters costs days: whoever submits it says what it trains
on, and how.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fourfold.config import ModelConfig, RunConfig, UserError, num_steps
from fourfold.data.tokenizer_file import named_vocab_size
from fourfold.data.weights import MOST_EPOCHS
from fourfold.model.counts import num_parameters

LARGE = 100_000_000
"""Parameters above which nothing of this is left to a default."""
LEAST_SHARE = 0.9
"""Share of the model's vocabulary that a tokenizer has at least: what is left is padding."""
_BY_SIZE = ((0.2e9, 6e-4), (0.6e9, 3e-4), (1e9, 2.5e-4), (2e9, 2e-4), (4e9, 1.6e-4), (9e9, 1.2e-4), (50e9, 1e-4))
"""Learning rates of models of up to so many parameters (Brown et al. 2020, table 2.1), of which the message names one."""
_LARGEST = 6e-5
USUAL_WARMUP = 2000
"""Steps of warm-up of most published runs; the message names a hundredth of a shorter one."""


class Undecided(NamedTuple):
    """A key that decides the run, what is wrong with it, and an override that works."""

    key: str
    fault: str
    works: str


def undecided(config: RunConfig, model: ModelConfig) -> list[Undecided]:
    """Keys that a large run leaves open; none of a small one."""
    parameters = num_parameters(model)
    if parameters <= LARGE:
        return []
    data, optimizer, steps = config.data, config.optimizer, _steps(config)
    found = []
    if "corpus" not in data.model_fields_set:
        found.append(
            Undecided("data.corpus", "not stated: it would be Python's standard library", "data.corpus=/path/to/text")
        )
    if "tokenizer" not in data.model_fields_set:
        fault = f"not stated: it would be {data.tokenizer}, for a vocabulary of {model.vocab_size:,}"
        found.append(Undecided("data.tokenizer", fault, "data.tokenizer=tokenizer.json"))
    elif (size := named_vocab_size(data.tokenizer)) is not None:
        found += _too_small(size, model)
    if "lr" not in optimizer.model_fields_set:
        lr = next((rate for most, rate in _BY_SIZE if parameters <= most), _LARGEST)
        found.append(Undecided("optimizer.lr", f"not stated: it would be {optimizer.lr:g}", f"optimizer.lr={lr:g}"))
    fault = ""
    if "warmup_steps" not in optimizer.model_fields_set:
        fault = f"not stated: it would be {optimizer.warmup_steps}"
    elif steps is not None and optimizer.warmup_steps >= steps:
        fault = f"{optimizer.warmup_steps:,} of the run's {steps:,} steps: it ends before its learning rate is there"
    if fault:
        warmup = USUAL_WARMUP if steps is None else max(1, min(USUAL_WARMUP, steps // 100))
        found.append(Undecided("optimizer.warmup_steps", fault, f"optimizer.warmup_steps={warmup}"))
    return found


def require_decided(config: RunConfig, model: ModelConfig, sections: Collection[str] = ("data", "optimizer")) -> None:
    """Raises `UserError` that names all that a large run leaves open in these sections."""
    _refuse([each for each in undecided(config, model) if each.key.split(".")[0] in sections], model)


def require_itself(config: RunConfig) -> None:
    """Raises `UserError` where the run's model only stands for another (`model.nearest_to`), unless the run says `as_nearest`."""
    model = config.model
    if model.nearest_to is None or model.as_nearest:
        return
    lost = "".join(f"\n  {each}" for each in model.lost)
    raise UserError(
        f"model.nearest_to = {model.nearest_to!r}: this is the nearest model that can be trained, not that one"
        f"{':' if lost else ''}{lost}\nwhat works: --as-nearest, or model.as_nearest=true, to train it all the same; leave "
        "model.nearest_to out where it stands for no other"
    )


def require_text(config: RunConfig, model: ModelConfig, vocab_size: int, tokens: int) -> None:
    """Raises `UserError` where the corpus is too small for the model: `vocab_size` of its tokenizer, `tokens` for training."""
    if num_parameters(model) <= LARGE:
        return
    found, a_step = _too_small(vocab_size, model), config.batch.global_sequences * config.batch.sequence_length
    wanted = num_steps(config) * a_step
    if tokens and wanted > MOST_EPOCHS * tokens:
        most = max(1, MOST_EPOCHS * tokens // a_step)
        fault = f"has {tokens:,} tokens for training, which the run would read {wanted / tokens:,.1f} times, over {MOST_EPOCHS}"
        found.append(Undecided("data.corpus", fault, f"a larger one, or batch.steps={most}"))
    _refuse(found, model)


def _refuse(found: Sequence[Undecided], model: ModelConfig) -> None:
    """Raises one `UserError` on all of it, if there is anything."""
    if found:
        lines = [f"  {each.key}: {each.fault}" for each in found]
        size = f"{num_parameters(model) / 1e9:.3g} G parameters"
        works = " ".join(each.works for each in found)
        head = f"a run of {size} leaves to defaults what decides it:"
        raise UserError("\n".join([head, *lines, f"what works: {works}"]))


def _steps(config: RunConfig) -> int | None:
    """Steps of the run, where it states its length."""
    return num_steps(config) if config.batch.steps or config.batch.tokens else None


def _too_small(size: int, model: ModelConfig) -> list[Undecided]:
    if size >= LEAST_SHARE * model.vocab_size:
        return []
    fault = f"{size:,} entries, and the model has {model.vocab_size:,}"
    return [Undecided("data.tokenizer", fault, "data.tokenizer=tokenizer.json, the model's own")]
