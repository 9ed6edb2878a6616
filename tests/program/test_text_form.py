"""The text form of a program reads back as the same program, and every word of it counts."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.model.work import Attention, Elementwise, Gemm, Join, Start, Work
from fourfold.program import (
    Collective,
    Instruction,
    Op,
    Program,
    StepSpec,
    digest,
    from_text,
    lower_pipeline,
    lower_step,
    to_text,
)
from tests.support.programs import altered, edited, evaluation_pipeline, make_view
from tests.support.strategies import lowerings

NAMES = st.sampled_from(["params/b0", "grad/b1", "hidden/b0/m3", "saved/b12/m0", "rope", "batch/m1"])
COLLECTIVES = st.builds(
    Collective,
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift", "send", "recv"]),
    axes=st.sampled_from(["dp_shard", "dp_replicate+dp_shard", "pp", "cp_ring", "tied"]),
    bytes=st.integers(0, 2**60),
    group_size=st.integers(1, 2**20),
)

SIZES = st.integers(0, 2**40)
ITEMS = st.one_of(
    st.builds(
        Gemm,
        SIZES,
        SIZES,
        SIZES,
        st.booleans(),
        st.integers(1, 256),
        st.sampled_from(["", "fp8", "fp8-block", "mxfp8"]),
    ),
    st.builds(Gemm, SIZES, SIZES, SIZES, batch=st.integers(2, 2**30)),
    st.builds(Attention, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans()),
    st.builds(Elementwise, SIZES, SIZES, SIZES, st.sampled_from(["", "sent", "sorted", "experts"])),
    st.builds(Start, COLLECTIVES, st.sampled_from(["", "tp.1", "dp_replicate+dp_shard.2"])),
    st.builds(Join, st.sampled_from(["tp.1", "ep.12"])),
)
WORK = st.lists(ITEMS, max_size=4).map(tuple).map(Work)


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    """Any instruction at all, those of pipelines included."""
    op = draw(st.sampled_from(list(Op)))
    names = st.lists(NAMES, max_size=4).map(tuple)
    waits = op is Op.WAIT
    return Instruction(
        op,
        segment=None if waits else draw(st.sampled_from([None, "embed", "b0", "b125", "head", "m", "r", "mb3", "rx"])),
        microbatch=None if waits else draw(st.none() | st.integers(0, 4096)),
        peer=None if waits else draw(st.none() | st.integers(0, 4096)),
        handle=draw(st.sampled_from(["N", "G b3", "R b3 m0", "S> m0 r2"])) if waits else None,
        reads=draw(names),
        writes=draw(names),
        frees=draw(names),
        work=draw(WORK),
        workspace_bytes=draw(st.integers(0, 2**50)),
        stream=draw(st.sampled_from(["compute", "dp_shard", "dp_replicate+dp_shard"])),
    )


@settings(max_examples=60, deadline=None)
@given(lowerings())
def test_lowered_programs_round_trip(spec: StepSpec) -> None:
    for program in (*lower_pipeline(spec), *evaluation_pipeline(spec)):
        text = to_text(program)
        assert from_text(text) == program
        assert to_text(from_text(text)) == text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(instructions(), max_size=4),
    st.integers(0, 15),
    st.sampled_from(["train", "evaluate"]),
    st.dictionaries(NAMES, st.integers(0, 2**50)),
)
def test_any_program_round_trips(steps: list[Instruction], pp_rank: int, kind: str, buffers: dict[str, int]) -> None:
    program = Program(pp_rank, kind, tuple(steps), buffers, tuple(sorted(buffers)))
    assert from_text(to_text(program)) == program


OTHER = {
    "op": Op.GATHER,
    "segment": "b9",
    "microbatch": 9,
    "peer": 9,
    "handle": "G b9",
    "reads": ("params/b9",),
    "writes": ("params/b9",),
    "frees": ("params/b9",),
    "work": Work((Gemm(9, 9, 9),)),
    "workspace_bytes": 9,
    "stream": "pp",
}


@pytest.mark.parametrize("field", Instruction._fields)
def test_the_digest_changes_with_every_field_of_an_instruction(field: str) -> None:
    program = lower_step(make_view(dp_shard=2, zero=3, accumulation=2))
    seen = {digest(program)}
    for index, step in enumerate(program.instructions):
        if field == "handle" and step.op is not Op.WAIT:
            continue  # of no meaning there
        if step.op is Op.WAIT and field in ("segment", "microbatch", "peer"):
            continue
        other = step._replace(**{field: OTHER[field]})  # type: ignore[arg-type]
        if other != step:
            seen.add(digest(edited(program, (index, [other]))))
            continue
    assert len(seen) > len(program.instructions) // 8
    changed = sum(
        step._replace(**{field: OTHER[field]}) != step  # type: ignore[arg-type]
        for step in program.instructions
        if (step.op is Op.WAIT or field != "handle")
        and (step.op is not Op.WAIT or field not in ("segment", "microbatch", "peer"))
    )
    assert len(seen) == changed + 1


@settings(max_examples=40, deadline=None)
@given(lowerings(tensor=False))
def test_ranks_of_a_pipeline_have_texts_of_their_own(spec: StepSpec) -> None:
    programs = lower_pipeline(spec)
    assert len({digest(program) for program in programs}) == spec.layout.pp
    for pp_rank, program in enumerate(programs):
        assert f"\npp_rank {pp_rank}\n" in to_text(program)


@pytest.mark.parametrize("field", [f.name for f in fields(Collective)])
def test_the_digest_changes_with_every_field_of_a_collective(field: str) -> None:
    other = {"kind": "all_to_all", "axes": "cp", "bytes": 1, "group_size": 77}
    program = lower_step(make_view(dp_replicate=2, dp_shard=2, zero=2))
    seen, count = {digest(program)}, 1
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            changed = list(step.collectives)
            changed[which] = replace(collective, **{field: other[field]})  # type: ignore[arg-type]
            seen.add(digest(edited(program, (index, [altered(step, collectives=tuple(changed))]))))
            count += 1
    assert len(seen) == count > 8


def test_the_digest_changes_with_everything_else_in_a_program() -> None:
    program = lower_step(make_view())
    steps = list(program.instructions)
    variants = [
        program,
        replace(program, pp_rank=1),
        replace(program, kind="evaluate"),
        replace(program, resident=program.resident[1:]),
        replace(program, buffers={**program.buffers, "more": 1}),
        replace(program, buffers={**program.buffers, "rope": 1}),
        program.with_instructions(steps[1:]),
        program.with_instructions([steps[1], steps[0], *steps[2:]]),
    ]
    assert len({digest(p) for p in variants}) == len(variants)
    assert digest(program) == digest(from_text(to_text(program)))


MALFORMED = [
    "Z b0 m0",
    "F b0 m0 | reeds params/b0",
    "F b0 m0 | comm all_gather dp_shard 12",
    "F b0 m0 | comm all_gather dp_shard 12 2 7",
    "F b0 m0 | comm gather_all dp_shard 12 2",
    "F b0 m0 | comm all_gather dp_shard twelve 2",
    "F b0 m0 | flops many",
    "F b0 m0 | flops 1.5",
    "F b0 m0 | flops",
    "F b0 m0 | flops 3 4",
    "F b0 m0 | workspace",
    "F b0 m0 | on",
    "F b0 m0 | on here there",
    "F b0 m0 |",
    "F b0 m0 | | flops 3",
    "F b0 b1 m0",
    "F b0 m0 m1",
    "F m0 b0",
    "F b0 m0 | reads a | reads b",
    "F b0 m0 | flops 3 | flops 4",
    "buffer params/b0",
    "buffer params/b0 many",
    "buffer params/b0 3 4",
    "resident",
    "resident a b",
    "kind",
    "kind nonsense",
    "pp_rank one",
    "wait",
    "| reads a",
]


@pytest.mark.parametrize("line", MALFORMED)
@pytest.mark.parametrize("number", [2, 40, "last"])
def test_a_malformed_line_is_named(line: str, number: int | str) -> None:
    lines = to_text(lower_step(make_view(dp_shard=2, zero=3))).splitlines()
    at = len(lines) if number == "last" else int(number) - 1
    lines.insert(at, line)
    with pytest.raises(UserError) as caught:
        from_text("\n".join(lines), "step.txt")
    assert str(caught.value).startswith(f"step.txt:{at + 1}: ")
    assert repr(line) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "\n", "fourfold program 2\n", "F b0 m0\n", "\x00"])
def test_a_text_that_is_no_program_is_refused_at_its_first_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^mine:1: .*'fourfold program 1'"):
        from_text(text, "mine")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_text_gives_a_program_or_a_message(data: st.DataObject) -> None:
    """Cut, doubled or altered words never escape as another exception, and never read as a program that writes otherwise."""
    words = to_text(lower_step(make_view(dp_shard=2, zero=1))).split(" ")
    index = data.draw(st.integers(0, len(words) - 1))
    change = data.draw(st.sampled_from(["drop", "double", "alter"]))
    new = {"drop": [], "double": [words[index]] * 2, "alter": [data.draw(st.text(max_size=6))]}[change]
    text = " ".join([*words[:index], *new, *words[index + 1 :]])
    try:
        program = from_text(text)
    except UserError:
        return
    assert from_text(to_text(program)) == program


def test_comments_blank_lines_spaces_and_the_order_of_parts_do_not_matter() -> None:
    program = lower_step(make_view(dp_shard=2, zero=3))
    lines = []
    for line in to_text(program).splitlines():
        head, *parts = line.split(" | ")
        is_turned = len(parts) < 4 and not head.startswith("work ")  # kernels stand in their order
        lines += [" | ".join([head, *reversed(parts)]) if is_turned else line, "", "# a remark"]
    assert from_text("\n".join(lines)) == program
