"""Every tensor of a microbatch lies on the rank's device, wherever its record keeps it: in tables by rotary embedding, for
documents, learned positions, modules ahead and a part of the row alike. Device "meta" stands for one that is not the host's."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.data.batches import Batch
from fourfold.train.feed import feed_tables, rank_feed
from tests.support.parity_ranks import prepare_rank
from tests.support.parity_runs import DEEPSEEK_V3, RankData, global_batch, run_table

META = torch.device("meta")
ROWS, LENGTH = 12, 20

CASES = {
    "plain": {},
    "documents": {"data": {"document_mask": True}},
    "a part of the row": {"layout": {"cp": 2}},
    "a part of documents": {"layout": {"cp": 2}, "data": {"document_mask": True}},
    "learned positions": {"model": {"family": "gpt2", "ffn_size": 128, "num_kv_heads": 4}, "layout": {"cp": 2}},
    "modules ahead": {"model": {**DEEPSEEK_V3, "mtp_layers": 1}},
    "windows": {
        "model": {"sliding_window": 4, "exceptions": [{"layers": [1], "sliding_window": 0}]},
        "layout": {"cp": 2},
    },
}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


@pytest.mark.parametrize("name", CASES)
def test_all_inputs_of_a_step_lie_on_the_device(name: str) -> None:
    view = prepare_rank(0, run_table(**CASES[name]), 2)[1]
    spec = view.spec
    tokens = np.zeros((ROWS, LENGTH), np.int64)
    lengths = ((7, 13),) * ROWS if spec.document_mask else None
    batch = Batch(tokens, tokens, tokens, lengths).select(list(spec.layout.rows(0, 0)))
    of_a_test = RankData(global_batch(0, ROWS, LENGTH, 99, spec.document_mask), spec, 0, META)
    for data in (rank_feed(spec, batch, 0, feed_tables(spec, META)), of_a_test):
        loaded = data.load(0)
        found = {each.name: list(_tensors(getattr(loaded, each.name))) for each in fields(loaded)}
        assert found["tokens"]
        assert spec.model.positions == "learned" or found["rope"]
        assert not [field for field, tensors in found.items() for tensor in tensors if tensor.device != META]
