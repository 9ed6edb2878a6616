"""The fit of constants: it finds what made the rows, stays within its limits and leaves out what it says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fit_constants
import fit_file
from case import PublishedCase
from fit_constants import HOLD, OUTLIER, Model, fit_to_looked, fitted_table, informed, named_as_known
from fit_memory import LARGEST, UNITS, MemoryRows, fit_memory, left_out_memory
from fit_memory import NAMES as MEMORY_NAMES
from fit_rows import TimedRows, prepare, timed_rows
from fit_sample import chosen, with_memory
from fit_table import FAMILIES, LIMITS, NAMES, SPREAD, Constants, Node, copied, moved_by, put, weights_of
from fourfold.cost.fitted import Fitted, fitted
from fourfold.hardware import device_names
from look import look_again
from normalise import normalise
from software import trainer_of
from tests.support.published import ROWS
from unexplained import own_median_removed, table_of

PRIOR, SHIPPED = fit_file.read(fit_file.PRIOR), fit_file.read(fit_file.FITTED)


def case(file: str, source: str) -> PublishedCase:
    """A row of that source, its software by framework and year, two leaves of one branch; every file is of another trainer."""
    found = normalise(replace(ROWS["torchtitan:1"], file=file, source=source, notes="", id=f"{file}:{source}"))
    assert isinstance(found, PublishedCase)
    return replace(found, software=trainer_of(source).name, trainer=file)


def timed(rows: list[tuple[PublishedCase, float]], name: str = "gemm_speed") -> TimedRows:
    """Rows whose time is inverse to one constant of the software, and off by a factor."""
    column = NAMES.index(("software", name))
    slopes = np.zeros((len(rows), len(NAMES)))
    slopes[:, column] = -1.0
    constants = Constants(PRIOR)
    values = np.array([[np.log(max(constants.of(part, c, n), 1e-30)) for part, n in NAMES] for c, _ in rows])
    return TimedRows([c for c, _ in rows], np.log([factor for _, factor in rows]), slopes, values)


def test_what_made_the_rows_is_found_and_a_framework_shares_it() -> None:
    rows = [(case(f"file{i}", f"torchtitan, {year}"), 1.04) for i in range(40) for year in (2024, 2026)]
    model = Model.of([timed(rows)], PRIOR)
    found = model.departures()
    shared = found[Node("framework", "torchtitan", "gemm_speed")]
    total = {year: shared + found[Node("software", f"torchtitan-{year}", "gemm_speed")] for year in (2024, 2026)}
    assert total[2024] == pytest.approx(np.log(1.04), rel=0.1), "slower by that factor: faster constants"
    assert total[2026] == pytest.approx(total[2024])
    assert shared > 0.005
    table = moved_by(PRIOR, found, {"torchtitan-2024", "torchtitan-2026"})
    before, after = Constants(PRIOR), Constants(table)
    for software in ("torchtitan-2024", "torchtitan-2026", "torchtitan-2030"):
        assert (
            after.value("software", software, "gemm_speed") > before.value("software", software, "gemm_speed") * 1.005
        ), software
    assert after.value("software", "nanotron-2025", "gemm_speed") == before.value(
        "software", "nanotron-2025", "gemm_speed"
    )


def test_a_constant_ends_at_its_limit_and_the_rest_is_made_of_others() -> None:
    """Rows that two constants explain alike: what one may not take, the other takes."""
    rows = [(case(f"file{i}", "torchtitan, 2026"), 2.0) for i in range(60)]
    both, alone = timed(rows, "fused"), timed(rows, "fused")
    both.slopes[:, NAMES.index(("software", "gemm_speed"))] = -1.0

    def sums(part: TimedRows) -> dict[str, float]:
        departures = Model.of([part], PRIOR).departures()
        found = {node: each for node, each in departures.items() if node.level != "trainer"}
        names = {node.name for node in found}
        return {name: sum(each for node, each in found.items() if node.name == name) for name in names}

    start = Constants(PRIOR).value("software", "torchtitan-2026", "fused")
    most = np.log(LIMITS["fused"][1] / start)
    assert sums(alone)["fused"] == pytest.approx(most, abs=2e-3)
    assert sums(both)["fused"] == pytest.approx(most, abs=2e-3)
    assert sums(both)["gemm_speed"] > 0.1


def test_a_limit_that_was_passed_on_the_way_alone_is_left_again() -> None:
    """Where the fit ends, no constant's move that stays within the limits makes it better."""
    draw = np.random.default_rng(81)
    rows = [(case(f"file{i}", "torchtitan, 2026"), float(np.exp(draw.normal(0, 1.5)))) for i in range(12)]
    part = timed(rows, "fused")
    for name in ("fused", "gemm_speed", "attention_speed", "link_speed"):
        part.slopes[:, NAMES.index(("software", name))] = draw.normal(0, 1.5, 12)
    model = Model.of([part], PRIOR)
    found = np.array(list(model.departures().values()))
    spread = np.array([node.spread for node in model.nodes])

    def cost(departures: np.ndarray) -> float:
        errors = (model.errors + model.matrix @ departures) / OUTLIER
        return float(
            np.sum(weights_of(model.cases) ** 2 * (np.sqrt(1 + errors**2) - 1))
            + np.sum((HOLD * departures / spread) ** 2) / 2
        )

    def allowed(departures: np.ndarray) -> bool:
        return all(least - 1e-3 <= departures[nodes].sum() <= most + 1e-3 for nodes, least, most in model.limits)

    assert allowed(found)
    moves = [found + 0.05 * sign * row for row in np.diag(spread) for sign in (-1, 1)]
    assert all(cost(each) > cost(found) - 1e-3 for each in moves if allowed(each))


def test_a_file_that_is_left_out_informs_nothing() -> None:
    rows = [
        (case("kept", "torchtitan, 2024"), 1.0),
        *((case("gone", "halo, throughput, 2026"), 1.3) for _ in range(30)),
    ]
    model, held = Model.of([timed(rows)], PRIOR), MemoryRows([], np.zeros((0, 4)))
    full = fitted_table(model, held, PRIOR)
    assert informed(full, model.cases, held.cases)["software"]["halo-2026"] == {"rows": 30, "files": ["gone"]}
    assert Constants(full).value("software", "halo-2026", "gemm_speed") > 0.91
    without = fitted_table(model, held, PRIOR, frozenset({"gone"}))
    assert not [name for name in without["software"] if name.startswith("halo")]
    assert Constants(without).value("software", "halo-2026", "gemm_speed") == PRIOR["software"]["default"]["gemm_speed"]


@pytest.mark.parametrize(
    ("software", "name"),
    [
        ("megatron-fork-2023", "megatron-fork-2023"),
        ("megatron-2026", "megatron-2026"),
        ("halo", "unknown"),
        ("megatronlike-2023", "unknown"),
    ],
)
def test_a_software_profile_that_is_left_out_is_what_its_name_begins_with_or_nobodys(software: str, name: str) -> None:
    known = Fitted({}, {"default": {}, "megatron": {}, "megatron-2024": {}}, {})
    assert named_as_known(replace(case("file", "torchtitan, 2024"), software=software), known).software == name


def test_software_that_nobody_knows_is_not_fitted() -> None:
    model = Model.of([timed([(case("file", "somebody's trainer"), 1.5) for _ in range(20)])], PRIOR)
    assert not [node for node in model.nodes if node.level in ("framework", "software")]
    assert not [name for name in fitted().profiles if name.startswith("unknown")]


@pytest.mark.parametrize("moved", ["saved_bytes", "unit_bytes"])
def test_memory_constants_are_recovered(moved: str) -> None:
    """Rows of several shapes made with more of one constant than the prior has."""
    one, start = case("file", "torchtitan, 2026"), Constants(PRIOR)
    wanted = {name: start.value("software", one.software, name) for name in UNITS}
    wanted[moved] += 2.0
    rows = []
    for activations, head, units in ((0.5, 0.1, 0.2), (0.1, 0.5, 0.1), (0.3, 0.3, 0.6), (0.6, 0.0, 0.0)) * 10:
        of = {"saved_bytes": activations, "gathered_bytes": 0.0, "logits_bytes": head, "unit_bytes": units}
        parts = np.array([0.4, *(of[name] for name in UNITS)])
        rows.append(parts / (0.4 + sum(of[name] * wanted[name] / UNITS[name] for name in UNITS)))
    table = copied(PRIOR)
    fit_memory(MemoryRows([replace(one, trainer=f"{i}") for i in range(len(rows))], np.array(rows)), PRIOR, table)
    for name in ("saved_bytes", "logits_bytes", "unit_bytes"):
        assert Constants(table).value("software", one.software, name) == pytest.approx(
            wanted[name], rel=0.1, abs=0.2
        ), name


@pytest.mark.parametrize(("failed", "moves"), [(False, -1), (True, 1)])
def test_runs_whose_memory_nobody_measured_bound_it(failed: bool, moves: int) -> None:
    """Predicted to need 1.3 x the memory, those that ran push down and those that failed say nothing; with 0.7 x, the reverse."""
    measured, start = case("file", "torchtitan, 2026"), Constants(PRIOR)
    bounded = replace(measured, measured=replace(measured.measured, memory_bytes=None, failed=failed))
    was = {name: start.value("software", measured.software, name) for name in UNITS}

    def fitted_share(needed: float) -> float:
        head = {"logits_bytes": 0.5 * needed * UNITS["logits_bytes"] / was["logits_bytes"]}
        parts = np.array([0.5 * needed, *(head.get(name, 0.0) for name in UNITS)])
        table = copied(PRIOR)
        fit_memory(MemoryRows([bounded] * 20, np.array([parts] * 20)), PRIOR, table)
        constants = Constants(table)
        now = [1.0, *(constants.value("software", measured.software, name) / UNITS[name] for name in UNITS)]
        return float((1 + constants.value("software", measured.software, "extra")) * (parts @ now))

    extra = 1 + start.value("software", measured.software, "extra")
    pushed, left = (1.3, 0.7) if moves < 0 else (0.7, 1.3)
    assert moves * (fitted_share(pushed) - pushed * extra) > 0.1
    assert fitted_share(left) == pytest.approx(left * extra)


def test_what_ships_stands_within_the_limits() -> None:
    tables = {
        "prior": PRIOR,
        "fitted": {"device": fitted().devices, "software": fitted().profiles, "link": fitted().links},
    }
    for name, table in tables.items():
        for part in ("device", "software"):
            for owner, entry in table[part].items():
                if owner == "fourfold":  # its programs say what it does: nothing of it is fitted
                    continue
                for key, (low, high) in LIMITS.items():
                    assert low <= entry.get(key, low) <= high, (name, owner, key)
                for key, high in LARGEST.items():
                    assert 0 <= entry.get(key, 0.0) <= high * UNITS.get(key, 1.0), (name, owner, key)


def test_every_device_has_a_family() -> None:
    assert {member for members in FAMILIES.values() for member in members} == set(device_names())


def test_a_family_follows_many_trainers_more_than_one() -> None:
    """Eighty rows that are slower by a factor: of eighty trainers, all of it is the family's; of one, what its spread leaves."""

    def shared(trainers: int) -> float:
        rows = [(replace(case(f"file{i}", "torchtitan, 2024"), software="torchtitan"), 1.04) for i in range(80)]
        rows = [(replace(each, trainer=f"{i % trainers}"), factor) for i, (each, factor) in enumerate(rows)]
        return Model.of([timed(rows)], PRIOR).departures()[Node("framework", "torchtitan", "gemm_speed")]

    assert shared(80) == pytest.approx(np.log(1.04), rel=0.15)
    own = SPREAD["trainer"] ** 2 / (SPREAD["trainer"] ** 2 + SPREAD["framework"] ** 2)
    assert shared(1) == pytest.approx((1 - own) * shared(80), rel=0.05)


def test_a_trainer_that_gives_its_family_the_name_is_the_family() -> None:
    rows = [(replace(case(f"file{i}", "torchtitan, 2024"), software="torchtitan"), 1.04) for i in range(80)]
    own, fork = (
        [(replace(each, trainer=name), factor) for each, factor in rows] for name in ("torchtitan-2025", "halo")
    )
    found, shared = (Model.of([timed(each)], PRIOR).departures() for each in (own, fork))
    node = Node("framework", "torchtitan", "gemm_speed")
    assert found[node] == pytest.approx(np.log(1.04), rel=0.15)
    own = SPREAD["trainer"] ** 2 / (SPREAD["trainer"] ** 2 + SPREAD["framework"] ** 2)
    assert shared[node] == pytest.approx((1 - own) * found[node], rel=0.05)
    assert not any(each.level == "trainer" for each in found)


def test_rows_that_were_looked_at_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = timed([(case(f"file{i}", "torchtitan, 2024"), 1.0 + i / 10) for i in range(3)])
    rows.save(tmp_path / "rows.npz")
    found = TimedRows.load(tmp_path / "rows.npz", rows.cases[1:])
    assert [each.id for each in found.cases] == [each.id for each in rows.cases[1:]]
    for name in ("errors", "slopes", "values"):
        assert getattr(found, name) == pytest.approx(getattr(rows, name)[1:])
    held = MemoryRows(rows.cases, np.arange(15.0).reshape(3, 5))
    held.save(tmp_path / "held.npz")
    again = MemoryRows.load(tmp_path / "held.npz", rows.cases[1:])
    assert [each.id for each in again.cases] == [each.id for each in rows.cases[1:]]
    assert again.parts.tolist() == held.parts[1:].tolist()


def test_rows_looked_at_again_have_the_times_of_another_table_and_their_slopes() -> None:
    cases = [
        each
        for each in (normalise(ROWS[name]) for name in ("torchtitan:1", "papers:0"))
        if isinstance(each, PublishedCase)
    ]
    slower = copied(SHIPPED)
    for each in cases:
        put(
            slower, "software", each.software, "gemm_speed", 0.9 * Constants(SHIPPED).of("software", each, "gemm_speed")
        )
    before, now = (timed_rows(prepare(cases, lambda case, found: True), table) for table in (SHIPPED, slower))
    again = look_again(before, slower)
    assert len(again.cases) == 2
    assert again.errors == pytest.approx(now.errors, rel=1e-12)
    assert (now.errors > before.errors + 0.02).all()
    assert again.values == pytest.approx(now.values, rel=1e-12)
    assert (again.slopes == before.slopes).all()


def test_a_fit_to_kept_rows_moves_step_times_and_leaves_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FITTED", "INFORMED"):
        mine = tmp_path / getattr(fit_file, name).name
        mine.write_bytes(getattr(fit_file, name).read_bytes())
        monkeypatch.setattr(fit_file, name, mine)
    monkeypatch.setattr(fit_constants, "FITTED", fit_file.FITTED)
    rows = timed([(replace(case(f"file{i}", "torchtitan, 2024"), software="torchtitan"), 1.04) for i in range(40)])
    fit_to_looked(rows, PRIOR, writes=True)
    before, after = Constants(SHIPPED), Constants(fit_file.read(tmp_path / "fitted.toml"))
    assert after.value("software", "torchtitan", "gemm_speed") == pytest.approx(
        1.04 * Constants(PRIOR).value("software", "torchtitan", "gemm_speed"), rel=0.01
    )
    for name in MEMORY_NAMES:
        assert after.value("software", "torchtitan", name) == pytest.approx(
            before.value("software", "torchtitan", name), rel=5e-3
        )
    assert "fitted, source left out: 40 rows" in capsys.readouterr().err


def test_what_rows_state_is_a_table_and_a_source_has_its_own_median() -> None:
    cases = [each for each in map(normalise, ROWS.values()) if isinstance(each, PublishedCase)][:40]
    table = table_of(cases)
    assert table.shape[0] == 40
    assert np.isfinite(table).all()
    assert len({tuple(row) for row in table.tolist()}) > 20, "rows that differ state other things"
    errors, sources = np.array([0.1, 0.3, 0.2, -0.4]), np.array(["a", "a", "a", "b"])
    assert own_median_removed(errors, sources) == pytest.approx([-0.1, 0.1, 0.0, 0.0])


def test_errors_without_a_source_are_those_of_a_fit_without_it() -> None:
    draw = np.random.default_rng(7)
    rows = [
        (case(f"file{i % 6}", "torchtitan, 2024"), float(np.exp(0.08 * (i % 3 == 0) + draw.normal(0, 0.01))))
        for i in range(24)
    ]
    model = Model.of([timed(rows)], PRIOR)
    written = np.array([node.level != "trainer" for node in model.nodes])

    def errors(left_out: frozenset[str] = frozenset()) -> np.ndarray:
        departures = model.departures(left_out)
        return model.errors + model.matrix @ (np.array([departures[node] for node in model.nodes]) * written)

    shipped = errors()
    found = model.left_out_errors(shipped, lambda each: each.file)
    for file in ("file0", "file3"):
        mine = [row for row, each in enumerate(model.cases) if each.file == file]
        assert found[mine] == pytest.approx(errors(frozenset({file}))[mine], abs=2e-3)
        assert np.abs(found[mine] - shipped[mine]).max() > 2.5e-3, "a source informs its own rows"


def test_memory_without_a_source_is_what_a_fit_to_the_others_predicts() -> None:
    one = case("file", "torchtitan, 2024")
    cases = [replace(one, file=f"file{i % 4}", trainer="torchtitan", id=f"{i}") for i in range(16)]
    parts = np.array([[0.5 + 0.2 * (i % 4 == 0), 0.1, 0.0, 0.1, 0.0] for i in range(16)])
    held, table, without = MemoryRows(cases, parts), copied(PRIOR), copied(PRIOR)
    fit_memory(held, PRIOR, table)
    fit_memory(held.without(frozenset({"file0"})), PRIOR, without)

    def error(known: dict) -> float:
        value = {name: Constants(known).value("software", one.software, name) for name in ("extra", *UNITS)}
        inner = parts[0, 0] + sum(
            p * value[name] / unit for p, (name, unit) in zip(parts[0, 1:], UNITS.items(), strict=True)
        )
        return float(np.log((1 + value["extra"]) * inner))

    found = left_out_memory(held, PRIOR, table, lambda each: each.file)
    assert found[[0, 4, 8, 12]] == pytest.approx(error(without), abs=1e-6)
    assert found[0] > error(table) + 1e-3, "its own rows hold more, and would have raised what is predicted: " + str(
        found
    )


def test_the_sample_of_a_source_depends_on_no_other() -> None:
    cases = [case for case in map(normalise, ROWS.values()) if isinstance(case, PublishedCase)]
    for draw in (lambda some: chosen(some, 3, 5), lambda some: with_memory(some, 3)):
        together = draw(cases)
        for file in {case.file for case in cases}:
            alone = draw([case for case in cases if case.file == file])
            assert [case.id for case in together if case.file == file] == [case.id for case in alone]
        assert len(together) < len(cases)
