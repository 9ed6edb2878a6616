"""Batches that are prepared beside the step before are those that the step itself would have read."""

import threading
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.config import RunFailure
from fourfold.data.batches import Batch
from fourfold.model.environment import Microbatch
from fourfold.train.batches_ahead import BatchesAhead
from fourfold.train.feed import RowFeed, feed_tables, rank_feed, rank_rows
from tests.support.programs import make_spec
from tests.support.waiting import until

CPU = torch.device("cpu")
STEPS = 6
SPECS = {
    "plain": make_spec(accumulation=3),
    "documents": make_spec(accumulation=2, document_mask=True),
    "learned positions": make_spec({"family": "gpt2", "num_kv_heads": None, "max_position": 64}),
    "context": make_spec(accumulation=2, cp=2, document_mask=True),
    "modules": make_spec({"mtp_layers": 2, "mtp_loss": 0.1}, accumulation=2),
}


class Rows:
    """Global batches of a seed; each says which steps were read, and on which threads."""

    def __init__(self, spec: Any) -> None:
        self._length, self._documents = spec.layout.sequence_length, spec.document_mask
        self.read: list[tuple[int, int]] = []
        self.broken: int | None = None

    def batch(self, step: int, rows: list[int]) -> Batch:
        self.read.append((step, threading.get_ident()))
        if step == self.broken:
            raise RunFailure(f"the tokens of step {step} are gone")
        chance = np.random.default_rng(step)
        tokens, targets = (chance.integers(0, 90, (len(rows), self._length)) for _ in range(2))
        half = self._length // 3
        lengths = ((half, self._length - half),) * len(rows) if self._documents else None
        own = np.concatenate([np.arange(half), np.arange(self._length - half)]) if lengths else np.arange(self._length)
        return Batch(tokens, targets, np.tile(own, (len(rows), 1)), lengths)


def made(name: str) -> tuple[Rows, BatchesAhead, Any]:
    spec = SPECS[name]
    rows, tables = Rows(spec), feed_tables(spec, CPU)
    own = rank_rows(spec.layout, 0)

    def feed(batch: Batch) -> RowFeed:
        return rank_feed(spec, batch, 0, tables)

    return rows, BatchesAhead(rows, lambda step: own, feed, STEPS, CPU), lambda step: feed(Rows(spec).batch(step, own))  # type: ignore[arg-type]


def tensors(feed: RowFeed, microbatches: int) -> Iterator[Any]:
    for m in range(microbatches):
        loaded: Microbatch = feed.load(m)
        yield from chain(*loaded.rope.values())
        yield from (getattr(loaded, each.name) for each in fields(loaded) if each.compare and each.name != "rope")


@pytest.mark.parametrize("name", SPECS)
def test_any_step_gets_its_own_batch(name: str) -> None:
    """In order, again as after a step that diverged, and from any step on as after a restart."""
    _, ahead, direct = made(name)
    for step in (0, 1, 2, 2, 4, 5, 1, 2):
        feed, right = ahead.take(step), direct(step)
        assert feed.num_targets == right.num_targets
        count = SPECS[name].layout.num_microbatches
        for ours, theirs in zip(tensors(feed, count), tensors(right, count), strict=True):
            assert torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else ours == theirs
    ahead.close()


def test_the_next_batch_is_there_before_it_is_asked_for() -> None:
    rows, ahead, _ = made("plain")
    ahead.take(0)
    until(lambda: len(rows.read) == 2)
    (first, here), (second, there) = rows.read
    assert (first, second) == (0, 1)
    assert here == threading.get_ident() != there
    ahead.close()


def test_nothing_is_read_beyond_the_last_step() -> None:
    rows, ahead, _ = made("plain")
    for step in range(STEPS):
        ahead.take(step)
    ahead.close()
    assert [step for step, _ in rows.read] == list(range(STEPS))


def test_data_that_cannot_be_read_fail_the_step_that_needs_them() -> None:
    rows, ahead, _ = made("plain")
    rows.broken = 2
    ahead.take(0)
    ahead.take(1)
    with pytest.raises(RunFailure, match="the tokens of step 2 are gone"):
        ahead.take(2)
    ahead.close()


def test_a_step_only_copies_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is done on the host for a microbatch is done on the thread."""
    _, ahead, _ = made("documents")
    feed = ahead.take(0)
    monkeypatch.setattr(RowFeed, "_own", lambda *_: pytest.fail("cut in the step"))
    monkeypatch.setattr(RowFeed, "_host", lambda *_: pytest.fail("pinned in the step"))
    for m in range(2):
        feed.load(m)
    ahead.close()


def test_the_thread_opens_the_ranks_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    done = SimpleNamespace(prepare=lambda: None)
    ahead = BatchesAhead(Rows(SPECS["plain"]), lambda step: [0], lambda batch: done, 9, torch.device("cuda", 3))  # type: ignore[arg-type, return-value]
    ahead.take(0)
    ahead.take(1)
    assert used == [torch.device("cuda", 3)]
    ahead.close()
