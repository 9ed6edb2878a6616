"""Hypothesis strategy: layouts and batches of any kind, most of which cannot run."""

from typing import Any

from hypothesis import strategies as st

from tests.support.combinations import METHODS, MODELS, MTP, SCHEDULES, Table


@st.composite
def any_sections(draw: st.DrawFn) -> Table:
    """Layouts and batches without regard to what can run."""

    def some(**choices: st.SearchStrategy[Any]) -> dict[str, Any]:
        """Each key in some of the cases."""
        return {key: draw(values) for key, values in choices.items() if draw(st.booleans())}

    small = st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8])
    recompute = st.sampled_from(["none", "full", "selective", "full:2", "full:9", "some", "selective:1"])
    schedules = [*SCHEDULES[1], *SCHEDULES[2], "1F1B", "zb-v", "nothing", "file:/nowhere.txt"]
    layout = some(
        pp=small,
        schedule=st.sampled_from(schedules),
        virtual_stages=st.sampled_from([1, 2, 2, 3, 9]),
        segments_per_stage=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        dp_replicate=small,
        dp_shard=small,
        zero=st.integers(0, 3),
        cp=small,
        cp_method=st.sampled_from([*METHODS, "ring+ulysses:3", "ring+ulysses:0", "Ring", "ring+ulysses:4"]),
        tp=small,
        sequence_parallel=st.booleans(),
        ep=small,
        etp=small,
        overlap_experts=st.booleans(),
        microbatch_sequences=small,
        recompute=st.one_of(recompute, st.lists(st.sampled_from(["none", "full", "all"]), min_size=1, max_size=3)),
    )
    model = {
        **MODELS[draw(st.sampled_from(sorted(MODELS.keys() - MTP.keys())))],
        **some(vocab_size=st.sampled_from([96, 99, 7])),
    }
    batch = some(global_sequences=st.integers(1, 30), sequence_length=st.integers(1, 40))
    return {"model": model, "batch": batch, "layout": layout}
