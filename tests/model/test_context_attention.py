"""Attention split over ranks is full attention: outputs and gradients, for every method, with any documents."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.model import torch_operations
from fourfold.model.context.attention import attend_forward
from fourfold.model.context.pieces import Documents, earlier_pieces, gathered_pieces, own_pieces, ring_pieces
from fourfold.model.environment import Environment, Saved
from fourfold.model.work import Work, sent_bytes
from tests.support.attention import UNREAD, Case, allowed, check_cases, memory_on_rank, record, run_cases
from tests.support.grid import others_are_rest
from tests.support.ranks import run_on_ranks

METHODS = [
    (1, 1, False),
    (2, 1, False),
    (2, 1, True),
    (3, 1, False),
    (3, 1, True),
    (4, 1, False),
    (4, 1, True),
    (1, 2, False),
    (1, 3, False),
    (1, 4, False),
    (2, 2, False),
    (2, 2, True),
]
"""(ring, ulysses, gather)."""

SEQUENCE = 24
DOCUMENTS = {
    "none": None,
    "whole": ((24,),) * 3,
    "uneven": ((5, 19), (7, 3, 9, 5), (23, 1)),
    "single tokens": ((1,) * 24, (1,) * 9 + (15,), (13, *(1,) * 11)),
    "chunk ends": ((12, 12), (3, 3, 3, 3, 12), (6, 12, 6)),
    "mixed": ((24,), (1,) * 24, (4, 4, 8, 8)),
}
HEADS = [(12, 12, 8, 8), (12, 4, 8, 8), (12, 2, 8, 5), (12, 1, 6, 8)]
"""(heads, kv_heads, head_dim, value_dim)."""


def cases_of(method: tuple[int, int, bool], dtype: torch.dtype = torch.float64) -> list[Case]:
    ring, ulysses, gather = method
    combinations = [*product((3,), HEADS, DOCUMENTS.values()), *product((1,), HEADS[1:3], DOCUMENTS.values())]
    return [
        Case(ring, ulysses, gather, batch, *heads, SEQUENCE, rows and rows[:batch], dtype)
        for batch, heads, rows in combinations
    ]


@pytest.mark.parametrize("part", others_are_rest(range(5), (0,)))
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_full_attention(method, part: int) -> None:
    """Every fifth case, from another one on for each part: all kinds of heads and of documents."""
    check_cases(cases_of(method)[part::5], 1e-10)


@pytest.mark.grid(1)
@pytest.mark.parametrize("fineness", [1, 2])
@pytest.mark.parametrize("method", [each for each in METHODS if each[0] > 1], ids=str)
def test_equals_full_attention_where_it_is_balanced(method, fineness) -> None:
    ring, ulysses, gather = method
    cases = []
    for rows, heads in product(list(DOCUMENTS.values())[1:], HEADS[1:3]):
        lengths = tuple(tuple(2 * n for n in row) for row in rows)
        cases.append(Case(ring, ulysses, gather, 3, *heads, 2 * SEQUENCE, lengths, fineness=fineness))
    check_cases(cases, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("method", [(1, 1, False), (4, 1, False), (4, 1, True), (2, 2, False)], ids=str)
def test_other_formats(method, dtype, tolerance) -> None:
    check_cases(cases_of(method, dtype)[::7], tolerance)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_bytes_sent_are_those_declared(method) -> None:
    ring, ulysses, _ = method
    cases = cases_of(method)[::9] + cases_of(method, torch.bfloat16)[1::12]
    degrees = {"cp_ring": ring, "cp_ulysses": ulysses}
    for case, results in zip(cases, run_cases(cases), strict=True):
        for rank, result in enumerate(results):
            recorded = record(case, rank // ulysses)
            assert result.forward_bytes == declared_bytes(recorded.forward, degrees), case
            assert result.backward_bytes == declared_bytes(recorded.backward, degrees), case


@pytest.mark.parametrize("method", [method for method in METHODS if method[0] > 1], ids=str)
def test_a_window_sends_the_keys_that_it_reaches(method) -> None:
    """Bytes are those declared: of the ends of two chunks, however many ranks there are, where a window reaches no further."""
    ring, ulysses, gather = method
    degrees = {"cp_ring": ring, "cp_ulysses": ulysses}
    cases = [Case(ring, ulysses, gather, 2, 4, 2, 8, 8, SEQUENCE, window=window) for window in (2, 4, 9)]
    for case, results in zip(cases, run_cases(cases), strict=True):
        for rank, result in enumerate(results):
            recorded = record(case, rank // ulysses)
            assert result.forward_bytes == declared_bytes(recorded.forward, degrees), case
            assert result.backward_bytes == declared_bytes(recorded.backward, degrees), case
            if case.window in (2, 4):
                ends = 2 * (case.window - 1) * case.batch * case.kv_heads // ulysses * 16 * 8
                assert result.forward_bytes["cp_ring"] == ends
                assert result.backward_bytes["cp_ring"] == 2 * ends


def declared_bytes(phase: Work, degrees: dict[str, int]) -> dict[str, int]:
    result = {axis: 0 for axis, degree in degrees.items() if degree > 1}
    for each in phase.collectives:
        kind = "send" if each.kind == "shift" else each.kind
        result[each.axes] += sent_bytes(kind, each.bytes, degrees[each.axes])
    return result


@pytest.mark.grid(2)
@pytest.mark.parametrize("heads", [(8, 8, 16, 16), (8, 2, 16, 16), (8, 1, 24, 16)], ids=str)
@pytest.mark.parametrize(
    "method", [(1, 1, False), (2, 1, False), (4, 1, False), (4, 1, True), (1, 4, False), (2, 2, True)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_is_that_declared(method, heads, dtype) -> None:
    case = Case(*method, 2, *heads, 512, None, dtype)
    results = [memory_on_rank(0, case)] if case.ranks == 1 else run_on_ranks(case.ranks, memory_on_rank, case=case)
    recorded = [record(case, rank).memory for rank in {0, case.ring - 1}]
    worst, declared = (
        [max(values) for values in zip(*map(astuple, each), strict=True)] for each in (results, recorded)
    )
    assert worst == pytest.approx(declared, rel=0.05)


@pytest.mark.parametrize("sequence", [24, 48])
@pytest.mark.parametrize("ring", [1, 2, 3, 4])
def test_every_allowed_pair_is_computed_once(ring, sequence) -> None:
    """All ranks' pieces together are the mask, whether keys rotate or are gathered."""
    for rows in DOCUMENTS.values():
        lengths = rows and [[2 * n for n in row] if sequence == 48 else list(row) for row in rows]
        case = Case(ring, batch=3, sequence=sequence, documents=lengths and tuple(map(tuple, lengths)))
        for gather, fineness in product((False, True), (0, 1, 2, 4) if lengths and ring > 1 else (0,)):
            if sequence % (2 * ring * max(fineness, 1)):
                continue
            case = replace(case, fineness=fineness)
            assert torch.equal(covered(case, gather), allowed(case).int())


def covered(case: Case, gather: bool) -> torch.Tensor:
    """[batch, queries, keys]: how many pieces have each pair."""
    ring, length = case.ring, case.sequence
    documents = Documents(case.batch, length, case.documents, ring, case.placement, case.window, case.chunk)
    positions = [case.positions(rank) for rank in range(ring)]
    fronts, backs = (torch.cat(half, 1) for half in zip(*(held.chunk(2, 1) for held in positions), strict=True))
    counts = torch.zeros(case.batch, length, length, dtype=torch.int32)
    for rank, held in enumerate(positions):
        work = [(held, [*own_pieces(rank, documents), *earlier_pieces(rank, documents)])]
        if gather and ring > 1:
            work += zip((fronts, backs), gathered_pieces(rank, documents), strict=True)
        else:
            others = [j for j in range(ring) if j != rank]
            work += [(positions[j], ring_pieces(rank, j, documents)) for j in others]
        for keys_held, pieces in work:
            for rows, queries, keys, mask, *_ in pieces:
                pairs = torch.ones(queries[1] - queries[0], keys[1] - keys[0], dtype=torch.int32)
                for row in range(*rows):
                    q, k = held[row, slice(*queries)], keys_held[row, slice(*keys)]
                    counts[row, q[:, None], k[None, :]] += {
                        "all": pairs,
                        "causal": pairs.tril(),
                        "turned": pairs.triu(),
                    }[mask]
    return counts


WINDOWS = [(1, None), (2, None), (3, None), (5, None), (11, None), (30, None), (None, 1), (None, 4), (None, 7), (4, 7)]
"""(window, chunk)."""


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ring", [1, 2, 3, 4])
def test_every_pair_within_a_window_is_computed_once(ring, window) -> None:
    for rows, gather in product(DOCUMENTS.values(), (False, True)):
        case = Case(ring, batch=3, sequence=24, documents=rows, window=window[0], chunk=window[1])
        assert torch.equal(covered(case, gather), allowed(case).int())


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_windows_equal_full_attention_with_their_mask(method) -> None:
    """Every sixth combination of heads, documents and windows."""
    ring, ulysses, gather = method
    combinations = product(HEADS, DOCUMENTS.values(), WINDOWS)
    cases = [
        Case(ring, ulysses, gather, 3, *heads, SEQUENCE, rows, window=window, chunk=chunk)
        for heads, rows, (window, chunk) in combinations
    ]
    check_cases(cases[ring + ulysses :: 6], 1e-10)


def test_work_is_even() -> None:
    """Without documents every rank of a ring has the same number of pairs, up to the diagonal."""
    for ring in (2, 3, 4, 8):
        length = 48 * ring
        documents = Documents(1, length, None, ring)
        work = []
        for rank in range(ring):
            others = [ring_pieces(rank, j, documents) for j in range(ring) if j != rank]
            pieces = [piece for some in (own_pieces(rank, documents), *others) for piece in some]
            assert len(pieces) == ring
            sizes = [((p.queries[1] - p.queries[0]), (p.keys[1] - p.keys[0]), p.mask == "causal") for p in pieces]
            work.append(sum(q * (q + 1) // 2 if causal else q * k for q, k, causal in sizes))
        assert set(work) == {length * (length + 1) // 2 // ring}


def cuts(length: int, rows: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Random documents of every row: any set of places to cut."""
    ends = st.sets(st.integers(1, length - 1), max_size=6).map(lambda cut: [0, *sorted(cut), length])
    row = ends.map(lambda points: tuple(b - a for a, b in pairwise(points)))
    return st.lists(row, min_size=rows, max_size=rows).map(tuple)


@settings(max_examples=60, deadline=None)
@given(ring=st.integers(1, 6), gather=st.booleans(), data=st.data())
def test_random_documents_are_covered_once(ring, gather, data) -> None:
    length = 2 * ring * data.draw(st.integers(1, 4)) + (0 if ring > 1 else data.draw(st.integers(0, 1)))
    case = Case(ring, batch=2, sequence=length, documents=data.draw(cuts(length, 2)))
    assert torch.equal(covered(case, gather), allowed(case).int())


def check_random(rows: tuple[tuple[int, ...], ...], methods: Sequence[tuple[int, int, bool]], heads: int) -> None:
    check_cases([Case(*method, len(rows), *HEADS[heads], SEQUENCE, rows) for method in methods], 1e-10)


@settings(max_examples=8, deadline=None)
@given(rows=cuts(SEQUENCE, 2), heads=st.integers(0, 3))
def test_random_documents(rows, heads) -> None:
    check_random(rows, [method for method in METHODS if method[0] * method[1] == 4], heads)


@pytest.mark.sweep
@settings(max_examples=200, deadline=None)
@given(rows=cuts(SEQUENCE, 3), heads=st.integers(0, 3), ranks=st.integers(2, 4))
def test_many_random_documents(rows, heads, ranks) -> None:
    check_random(rows, [method for method in METHODS if method[0] * method[1] == ranks], heads)


def test_a_scale_of_ones_own() -> None:
    check_cases([Case(4, 1, heads=4, kv_heads=2, scale=0.3), Case(2, 2, True, heads=4, kv_heads=1, scale=0.3)], 1e-10)


def test_what_does_not_fit_is_refused() -> None:
    env, q = Environment(torch_operations, UNREAD), torch.zeros(2, 8, 4, 8)
    with pytest.raises(ValueError, match=r"document_lengths has 1 rows, the batch 2"):
        attend_forward(env, [q, q, q], [[8]], Saved())
    with pytest.raises(ValueError, match=r"document_lengths\[1\] sums to 7"):
        attend_forward(env, [q, q, q], [[8], [3, 4]], Saved())


def test_attention_on_shape_tensors_needs_no_torch() -> None:
    code = "import sys, fourfold.model.context.attention, fourfold.model.footprint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
