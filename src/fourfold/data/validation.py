"""Validation sets by name: the documents for validation of one source each, and corpora of their own."""

from collections.abc import Mapping
from dataclasses import dataclass

from fourfold.config import RunConfig, RunFailure, UserError
from fourfold.data.batches import Batch, validation_batch
from fourfold.data.indexed import TokenStream
from fourfold.data.prepared import PreparedData
from fourfold.data.weights import sources_of


@dataclass(frozen=True)
class NamedSet:
    """A set whose loss is told apart: the first `sequences` sequences of its tokens, in their order."""

    name: str
    sequences: int
    stream: TokenStream
    eos: int
    document_mask: bool

    def batches(self, sequence_length: int, num_rows: int) -> list[Batch]:
        """Batches of `num_rows` rows, with targets of its sequences alone; each holds some."""
        every = -(-self.sequences // num_rows) * num_rows
        streams, counts = [self.stream], [self.sequences]
        batch = validation_batch(streams, counts, every, sequence_length, self.eos, self.document_mask)
        found = [batch.select(slice(first, first + num_rows)) for first in range(0, every, num_rows)]
        return [each for each in found if each.valid_tokens]


def named_sets(config: RunConfig, prepared: PreparedData, own: Mapping[str, PreparedData]) -> list[NamedSet]:
    """The sets of a run, in the order of its file: those of sources where `run.evaluate_sources` asks for them, then those of
    `run.validation`. A source without a document for validation has none. own: the data of `run.validation`, by name. Raises
    `UserError` for one with nothing to predict."""
    run, mask, length = config.run, config.data.document_mask, config.batch.sequence_length
    found = []
    if run.evaluate_sources:
        for source, part in zip(sources_of(config.data), prepared.parts, strict=True):
            each = NamedSet(source.path, run.evaluate_sequences, prepared.streams(part)[1], prepared.eos, mask)
            found += [each] if each.batches(length, each.sequences) else []
    for stated in run.validation:
        if stated.name not in own:
            raise RunFailure(
                f"run.validation: the data of {stated.name!r} are not prepared; give the run's command again"
            )
        data = own[stated.name]
        each = NamedSet(
            stated.name, stated.sequences or run.evaluate_sequences, data.streams(data.parts[0])[1], prepared.eos, mask
        )
        if not each.batches(length, each.sequences):
            raise UserError(
                f"run.validation {stated.name!r}: corpus = {stated.corpus!r} holds no target to predict; what works: a "
                "larger corpus"
            )
        found.append(each)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"run.validation: two sets are named {name!r}; what works: another name for one of them")
    return found
