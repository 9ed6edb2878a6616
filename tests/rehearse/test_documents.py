"""On a device, packed documents cost one launch of attention a layer and direction, however many they are."""

from collections import Counter
from typing import Any

import pytest

from fourfold.model.work import Attention
from fourfold.program import lower_pipeline
from fourfold.program.spec import StepSpec
from fourfold.program.view import rank_views
from fourfold.rehearse import rank
from fourfold.rehearse.kernels import DeviceKernels
from fourfold.rehearse.rank import RankRehearsal, rehearse_rank
from fourfold.rehearse.shapes import KnownShapes
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.parity_runs import DEEPSEEK_V3

DOCUMENTS = {"document_mask": True}
TWO_ROWS = {"microbatch_sequences": 2}
LAYOUTS = {
    "one rank": (1, sections(TWO_ROWS, data=DOCUMENTS)),
    "mla": (1, sections(TWO_ROWS, DEEPSEEK_V3, DOCUMENTS)),
    "ulysses": (2, sections({"cp": 2, "cp_method": "ulysses", **TWO_ROWS}, data=DOCUMENTS)),
    "ring": (2, sections({"cp": 2, **TWO_ROWS}, data=DOCUMENTS)),
    "gathered keys": (2, sections({"cp": 2, "cp_method": "all_gather", **TWO_ROWS}, data=DOCUMENTS)),
}
PACKED = ("_flash_attention_forward", "_flash_attention_backward")


def _rehearse(spec: StepSpec, optimizer: Any, documents: int) -> tuple[RankRehearsal, Counter[str]]:
    """Rank 0's step with so many documents a row, and its launches of attention by operator."""
    launches: Counter[str] = Counter()
    original = DeviceKernels._run

    def run(self: DeviceKernels, operation: Any, *rest: Any) -> None:
        if "attention" in operation.name:
            launches[operation.name] += 1
        original(self, operation, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceKernels, "_run", run)
        patch.setattr(rank, "DOCUMENTS", documents)
        program = lower_pipeline(spec)[0]
        return rehearse_rank(rank_views(spec)[0], program, 0, optimizer, KnownShapes()), launches


@pytest.mark.parametrize("name", LAYOUTS)
def test_launches_do_not_grow_with_the_documents(name: str) -> None:
    spec, optimizer = sections_spec(*LAYOUTS[name])
    (few, kernels), (many, more) = (_rehearse(spec, optimizer, number) for number in (2, 8))
    blocks = spec.model.num_layers * spec.layout.num_microbatches
    halves = 2 if spec.layout.cp_ring > 1 else 1  # a ring's backward computes some of its heads while keys travel
    for launches in (kernels, more):
        assert [launches[kernel] for kernel in PACKED] == [blocks, halves * blocks]
    if spec.layout.cp_ring == 1:
        assert more == kernels
        assert many.launches == few.launches
    else:  # and one of every row for the document that it shares with another rank, where there is one
        assert sum(more.values()) <= sum(kernels.values())
    assert few.copies == many.copies


def test_the_recorder_has_as_many_attentions() -> None:
    """A block of two rows on an accelerator: one kernel, of all documents."""
    spec, _ = sections_spec(*LAYOUTS["one rank"])
    instructions = {step.short: step for step in lower_pipeline(spec)[0].instructions}
    for short in ("F b3 m0", "B b3 m0"):
        attentions = [item for item in instructions[short].work.items if isinstance(item, Attention)]
        assert [(each.sequences, each.queries) for each in attentions] == [(2, 16)]
