"""Tables of operations and buffers: every one has one row, programs keep to the rows, and no second table stands beside them."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import EnumType, unique
from pathlib import Path
from typing import Any

import pytest

from fourfold.program import Instruction, Op, buffers, lower_pipeline, ops
from fourfold.program.capabilities import BUFFERS, BY_LETTER, CAPABILITIES, OPCODES
from fourfold.program.instruction import Opcode
from fourfold.program.offload.steps import OffloadOp
from fourfold.program.opcode import FROM_HOST, GROUP, SHARDS, SMALL_SUMS, TO_HOST, OpInfo
from fourfold.program.ops import OTHER_END
from tests.program.test_mutations import CASES
from tests.support.opcodes import COMPUTE_OPS, GRADIENT_OPS, STARTS, TRANSFERS
from tests.support.programs import QWEN3_MOE, evaluation_pipeline, make_spec
from tools import instruction_table

SOURCE = Path(ops.__file__).parents[1]


def test_an_operation_has_one_row() -> None:
    class Row(Opcode):
        NEW = OpInfo("9", "nothing", "does nothing")

    assert Row.NEW.value == "9"
    with pytest.raises(AttributeError, match="letter"):
        type("NoRow", (Opcode,), _members(NEW="9"))
    with pytest.raises(ValueError, match="duplicate values"):
        unique(Opcode("Twice", {"FIRST": Op.LOAD.info, "SECOND": Op.LOAD.info}))  # type: ignore[call-overload]
    assert len({op.info.letter for op in OPCODES}) == len(OPCODES)
    assert {*OPCODES} == {*Op, *(op for each in CAPABILITIES if each.opcodes for op in each.opcodes)}


def _members(**rows: object) -> Any:
    namespace = EnumType.__prepare__("NoRow", (Opcode,))
    for name, row in rows.items():
        namespace[name] = row
    return namespace


def test_the_documentation_s_table_is_theirs() -> None:
    page = instruction_table.PAGE.read_text(encoding="utf-8")
    assert instruction_table.with_table(page) == page, "what works: python -m tools.instruction_table --write"
    assert instruction_table.with_table(page.replace("fetches a microbatch", "")) == page


def test_words_of_no_two_operations_are_the_same() -> None:
    for texts in ([op.info.meaning for op in OPCODES], [op.info.does for op in OPCODES], [op.words for op in OPCODES]):
        assert all(texts)
        assert len(set(texts)) == len(OPCODES)


def test_letters_in_rows_name_operations_of_the_same_kind() -> None:
    for op in OPCODES:
        full = BY_LETTER[op.info.part_of] if op.info.part_of else None
        assert full is None or (full.info.part_of is None and full.info.computes)
        assert not (full and op.info.computes) or op.info.computes == full.info.computes
        assert op.info.rest is None or BY_LETTER[op.info.rest].info.computes == op.info.computes
        assert op.info.colour is None or BY_LETTER[op.info.colour].info.colour == op.info.colour
    assert OTHER_END.keys() == TRANSFERS
    assert all(OTHER_END[OTHER_END[op]] is op for op in TRANSFERS)


def test_rows_of_kinds_of_time_and_phases_agree() -> None:
    """A row's fields say the same of an operation as each other, where one follows from another."""
    for op in OPCODES:
        info = op.info
        assert (info.time == SMALL_SUMS) == (info.names == "nothing"), (
            "only what is of the step alone sums a few numbers"
        )
        assert (info.time == "optimizer") == (info.colour == "U"), op
        if info.computes and info.computes != "replay":
            assert (info.phase or "").startswith(info.computes), op
            assert BY_LETTER[info.part_of or info.letter].info.colour == info.colour, op
        later = [each for each in COMPUTE_OPS if each.info.part_of == "B" and each.info.place > info.place]
        if info.part_of == "B" and op in GRADIENT_OPS and later:
            assert info.rest == max(later, key=lambda each: each.info.place).info.letter


FORMS = {
    "nothing": "",
    "microbatch": " m",
    "segment": " segment m",
    "transfer": " segment m r",
    "unit": " unit",
    "unit of a microbatch": " unit m",
    "segment or unit": " segment m| unit",
    "instruction": " started",
}


def _form(step: Instruction, units: set[str]) -> set[str]:
    named = f"{' m' if step.microbatch is not None else ''}{' r' if step.peer is not None else ''}"
    if step.segment is None:
        return {named if step.handle is None else " started"}
    return {f" {kind}{named}" for kind in (["unit"] if step.segment in units else []) + ["segment"]}


def _steps() -> dict[Opcode, list[tuple[Instruction, str, set[str]]]]:
    """An instruction of each pattern, with the kind of its program and the units of its rank, by operation."""
    more: dict[str, dict[str, Any]] = {
        "checked, mixed": {"dp_shard": 2, "zero": 0, "checked": True, "precision": {"compute": "bf16"}},
        "whole matrices": {"optimizer": "muon"},
        "in parts": {"model": QWEN3_MOE, "dp_shard": 2, "ep": 2, "overlap_experts": True, "accumulation": 2},
    }
    found = defaultdict(list)
    for case in (*CASES.values(), *more.values()):
        spec = make_spec(**case)
        for program in (*lower_pipeline(spec), *evaluation_pipeline(spec)):
            units = {name.partition("/")[2] for name in program.buffers if name.startswith("params/")}
            for pattern, microbatches in program.steps.microbatches.items():
                found[pattern.op].append((pattern.of(microbatches[0]), program.kind, units))
    return found


def _named(steps: list[tuple[Instruction, str, set[str]]]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    return [step.reads for step, _, _ in steps], [step.writes for step, _, _ in steps]


def _kinds(names: tuple[str, ...]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def test_programs_keep_to_the_table() -> None:
    """Every kind of buffer that a row names occurs, and no other; so do streams, what an instruction names, and evaluations."""
    found = _steps()
    assert found.keys() == set(OPCODES)
    for op, steps in found.items():
        info = op.info
        for step, kind, units in steps:
            where = f"{op.name}: {step.short}"
            assert kind == "train" or info.evaluates, where
            more = {kind for each in CAPABILITIES for kind in each.uses.get(op, ())}
            assert step.op is Op.WAIT or _kinds(step.frees) <= {*info.reads, *info.frees, *more}, where
            assert _form(step, units) & set(FORMS[info.names].split("|")), where
            groups = {c.axes for c in step.collectives}
            if info.stream == SHARDS:
                assert step.stream.split("+")[0].startswith(("dp", "cp", "ep", "edp")), where
            else:
                assert step.stream == info.stream or (info.stream == GROUP and step.stream in groups), where
        read, written = ({kind for names in all_names for kind in _kinds(names)} for all_names in _named(steps))
        more = {kind for each in CAPABILITIES for kind in each.uses.get(op, ())}
        assert read - more == set(info.reads), op
        assert written - more == set(info.writes), op
        assert more <= read | written, op
        assert info.evaluates == any(kind == "evaluate" for _, kind, _ in steps), op
    assert {op for op in OPCODES if op.info.stream in (TO_HOST, FROM_HOST)} == {OffloadOp.OFFLOAD, OffloadOp.FETCH}


def test_every_buffer_of_a_program_has_a_row() -> None:
    """A buffer's name has the form that its row states; every row occurs."""
    found = set()
    for case in CASES.values():
        spec = make_spec(**case)
        for program in lower_pipeline(spec):
            for kind in program.buffer_kinds:
                name, _, rest = buffers.device(kind.example).partition("/")
                microbatch = re.search(r"(?:^|/)m\d+$", rest)
                owner = rest[: microbatch.start()] if microbatch else rest
                assert bool(microbatch) == BUFFERS[name].of.endswith("/m"), kind.example
                assert bool(owner) == BUFFERS[name].of.startswith(("/U", "/S")), kind.example
                found.add(name)
    assert found == BUFFERS.keys()
    named = {kind for each in CAPABILITIES for kinds in each.uses.values() for kind in kinds}
    named |= {kind for op in OPCODES for kind in (*op.info.reads, *op.info.writes, *op.info.frees)}
    assert {buffers.device(kind) for kind in named} == BUFFERS.keys()


def test_what_is_started_is_joined() -> None:
    joined = {BY_LETTER[(step.handle or "").split()[0]] for step, _, _ in _steps()[Op.WAIT]}
    assert joined == STARTS


LOCAL = {
    ("program/compression/declared.py", "declared"): "the operation that takes the place of another",
    ("program/compression/declared.py", "gradient_rules"): "rules of the gradients' walk, a function each",
    ("program/muon/__init__.py", "MUON"): "the buffers of the room that operations of the core use",
    ("program/muon/declared.py", "gradient_rules"): "rules of the gradients' walk, a function each",
    ("program/muon/steps.py", "launches"): "the two operations that have launches beside their work",
    ("program/overlap/__init__.py", "OVERLAP"): "the buffers of the room that operations of the core use",
    ("program/overlap/declared.py", "declared"): "the two passes that may run in parts",
    ("program/sampling/declared.py", "declared"): "the two operations on a unit, one on each side of its update",
    ("program/sampling/steps.py", "insert_samples"): "the two operations with which a backward may begin",
    ("program/sampling/steps.py", "launches"): "the operations that have launches beside their work",
    ("explore/board/document.py", "_EXCLUDES"): "a schedule's own vocabulary: the passes that one takes the place of",
    ("explore/board/measured.py", "_stage_times"): "times of stages, by a schedule's passes",
    ("runtime/sampling.py", "handlers"): "the handlers of the room's operations",
    ("calibrate/fit.py", "_UNTIMED"): "kinds of time that are no part of a calibrated step",
    ("program/gradient_flow.py", "_TAKES"): "rules of the gradients' walk, a function each",
    ("program/overlap/turns.py", "_SECONDS"): "relative times of a schedule's passes",
    ("program/overlap/turns.py", "fit"): "the pair of passes that a schedule runs in turns",
    ("program/schedule/compute.py", "(FORWARD, BACKWARD)"): "a schedule's own vocabulary",
    ("program/schedule/compute.py", "(BACKWARD_INPUT, BACKWARD_WEIGHT)"): "a schedule's own vocabulary",
    ("program/schedule/execution.py", "execute"): "a schedule's own vocabulary",
    ("program/schedule/times.py", "durations"): "times of stages, by a schedule's passes",
    ("program/schedule/times.py", "activation_changes"): "activations of stages, by a schedule's passes",
    ("program/narrow/steps.py", "narrow_updates"): "the changes of two instructions, a function each",
    ("program/narrow/steps.py", "launches"): "the two instructions that round states",
    ("program/narrow/declared.py", "declared"): "the two instructions that round states",
    ("runtime/executor.py", "__init__"): "the interpreter's handlers, a function each",
    ("runtime/compression.py", "handlers"): "the interpreter's handlers, a function each",
    ("runtime/muon.py", "handlers"): "the interpreter's handlers, a function each",
    ("runtime/overlap.py", "handlers"): "the interpreter's handlers, a function each",
    (
        "explore/board/moves/setting.py",
        "is_movable",
    ): "a person may move joins and frees, beside all that start something",
}
"""Tables of operations outside their own, and why a row could not say the same."""


_NAMES = {"Op", *(each.opcodes.__name__ for each in CAPABILITIES if each.opcodes)}


def _is_op(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _NAMES


def _tables(node: ast.AST, owner: str = "") -> Iterator[str]:
    """The function, class or variable that has each table: a set or dictionary of operations, or a list of two and more."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            owner = node.name
        case ast.Assign() if not owner:
            owner = ast.unparse(node.targets[0])
        case ast.AnnAssign() if not owner:
            owner = ast.unparse(node.target)
        case ast.Dict() if any(map(_is_op, node.keys)):
            yield owner
        case ast.Set() if any(map(_is_op, node.elts)):
            yield owner
        case ast.Tuple() | ast.List() if sum(map(_is_op, node.elts)) > 1:
            yield owner
    for child in ast.iter_child_nodes(node):
        yield from _tables(child, owner)


def test_no_second_table_of_operations_stands_beside_theirs() -> None:
    root = SOURCE
    found = {
        (path.relative_to(root).as_posix(), owner)
        for path in root.rglob("*.py")
        for owner in _tables(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(LOCAL), "give the row a field that says it, or list the table here with the reason"


def test_a_second_table_is_found() -> None:
    for text in (
        "X = {Op.LOAD: 1}",
        "X = {Op.LOAD}",
        "def X(op): return op in (Op.LOAD, Op.FREE)",
        "X: list = [Op.LOAD, Op.FREE]",
    ):
        assert list(_tables(ast.parse(text))) == ["X"]
    for text in ("X = Op.LOAD", "X = (Op.LOAD, 1)", "X = f(Op.LOAD)"):
        assert not list(_tables(ast.parse(text)))
