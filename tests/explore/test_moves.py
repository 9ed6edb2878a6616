"""The board's programs: instructions that a person moves, judged and priced by the engine's own verifier and simulator."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fourfold.api.simulation import simulate
from fourfold.api.verification import verify
from fourfold.config import UserError
from fourfold.explore.board.moves.goals import ProgramGoal, read_goals
from fourfold.explore.board.moves.judged import Judged, judged, unmoved
from fourfold.explore.board.moves.link import Order, link_of, read_link
from fourfold.explore.board.moves.search import least_memory
from fourfold.explore.board.moves.setting import CLUSTERS, Compiled, compiled, is_movable, read_settings
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from fourfold.program.instruction import Instruction, Op
from tests.explore.test_documents import silent

HERE = CLUSTERS[0]
SETTINGS = tuple(read_settings())


def answered(**body: Any) -> Any:
    """The document."""
    return json.loads(encoded("moves", body, silent))


def named(of: Compiled, number: int, short: str, which: int = 0) -> int:
    """The number of an instruction by its short form."""
    found = [n for n, step in enumerate(of.lists[number].instructions) if step.short == short]
    return found[which]


def moved(order: Order, which: int, place: int) -> Order:
    """The order with one instruction at another place."""
    rest = [n for n in order if n != which]
    return (*rest[:place], which, *rest[place:])


def behind(of: Compiled, number: int, short: str, other: str) -> tuple[Order, ...]:
    """The compiler's orders with one instruction behind another, each the first of its name."""
    orders = list(unmoved(of).orders)
    which = named(of, number, short)
    rest = [n for n in orders[number] if n != which]
    orders[number] = moved(orders[number], which, rest.index(named(of, number, other)) + 1)
    return tuple(orders)


# Without moves


@pytest.mark.parametrize("name", SETTINGS)
def test_without_moves_the_answers_are_those_of_verify_and_simulate(name: str) -> None:
    setting, found = read_settings()[name], answered(setting=name)
    ours = verify({}, setting.run_keys, ranks=setting.num_ranks, cluster=HERE)
    assert (found["state"], found["faults"]) == ("proved", [])
    proof = ours.proofs()[0]
    assert f"{proof['instructions']} instructions, {proof['buffer_accesses']} reads" in found["message"]
    theirs = simulate({}, setting.run_keys, cluster=HERE, ranks=setting.num_ranks)
    assert found["price"] == found["before"]
    assert found["price"]["step_seconds"] == theirs.step_seconds
    simulation = theirs.summary.step.simulation
    assert found["price"]["peak_bytes"] == max(peak.bytes for peak in simulation.peaks)
    for row, own in zip(found["lists"], found["price"]["lists"], strict=True):
        rank = theirs.resolved.layout.pp_rank(row["ranks"][0])
        assert own["starts"] == simulation.times.ranks[rank].starts
        assert own["live_bytes"] == simulation.curves[rank]
        shorts = [row["instructions"][number]["short"] for number in row["order"]]
        assert shorts == [step.short for step in ours.programs[0][row["ranks"][0]].instructions]


def test_waiting_and_idle_time_are_the_simulators_shares() -> None:
    setting = read_settings()["both"]
    price = answered(setting="both")["price"]
    told = simulate({}, setting.run_keys, cluster=HERE, ranks=4).to_json(advice=False)["time_shares"]
    assert price["exposed_seconds"] / price["makespan"] == pytest.approx(sum(told["exposed"].values()), rel=1e-6)


# Moves


@pytest.mark.parametrize("name", SETTINGS)
def test_any_order_comes_back_from_its_link(name: str) -> None:
    of, chance = compiled(name, HERE), random.Random(3)
    for _ in range(60):
        orders = _shuffled(of, chance, chance.randrange(1, 12), drop=0.2)
        text = link_of(orders, of.lists)
        assert read_link(text, of.lists) == orders
        assert link_of(read_link(text, of.lists), of.lists) == text
    assert link_of(unmoved(of).orders, of.lists) == ""


def test_a_link_has_no_more_moves_than_were_made() -> None:
    of, chance = compiled("zero3", HERE), random.Random(5)
    for number in range(1, 6):
        orders = _shuffled(of, chance, number, drop=0.0)
        assert len([word for word in link_of(orders, of.lists).split(".") if word]) <= number


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_verifier_passes_keeps_every_dependence(name: str) -> None:
    """Whatever is moved: a proved order is a permutation of the compiler's that computes the same values from the same values, in
    buffers that are there, and in which nobody waits for ever; by a walk of its own, without the verifier."""
    of, chance = compiled(name, HERE), random.Random(7)
    first = unmoved(of)
    expected, passed, refused = _values(first), 0, 0
    for trial in range(120):
        now = judged(of, _shuffled(of, chance, 1 + trial % 4, drop=0.0, near=6))
        for order, own in zip(now.orders, of.lists, strict=True):
            assert sorted(order) == list(range(len(own.instructions)))
        if now.proved:
            passed += now.orders != first.orders
            assert _values(now) == expected
        else:
            refused += 1
            assert trial > 12 or answered(setting=name, moves=link_of(now.orders, of.lists))["faults"]
    assert passed > 5
    assert refused > 5


def test_the_walk_of_this_test_sees_what_is_broken() -> None:
    of = compiled("prefetch", HERE)
    with pytest.raises(Broken, match="reads params/b0"):
        _values(judged(of, behind(of, 0, "wait G b0", "F b0 m0")))
    ring = compiled("pipeline", HERE)
    with pytest.raises(Broken, match="waits for ever"):
        _values(judged(ring, behind(ring, 1, "wait Y", "Y")))


@pytest.mark.parametrize("name", ["zero3", "prefetch", "both", "own-lists"])
def test_a_dropped_gather_is_refused_even_with_its_wait_and_its_free(name: str) -> None:
    of = compiled(name, HERE)
    for number, own in enumerate(of.lists):
        for n, step in enumerate(own.instructions):
            if step.op is Op.GATHER:
                for dropped in ({n}, _with_followers(own.instructions, n)):
                    orders = list(unmoved(of).orders)
                    orders[number] = tuple(each for each in orders[number] if each not in dropped)
                    assert not judged(of, orders).proved, (step.short, dropped)


def test_a_gather_behind_its_use_is_refused_with_what_it_touches() -> None:
    of = compiled("prefetch", HERE)
    orders = behind(of, 0, "wait G b0", "F b0 m0")
    found = answered(setting="prefetch", moves=link_of(orders, of.lists))
    fault = found["faults"][0]
    assert (found["state"], fault["message"]) == ("refused", "reads params/b0, which G b0 is still filling")
    assert found["message"] == str(verify(_run_program(judged(of, orders))).faults[0])
    assert fault["at"] == {"list": 0, "number": named(of, 0, "F b0 m0")}
    about = {each["number"] for each in fault["about"]}
    assert {named(of, 0, "G b0"), named(of, 0, "wait G b0"), named(of, 0, "X b0")} <= about


def test_an_earlier_gather_hides_and_costs_memory() -> None:
    """Every gather of the list without prefetch one computation earlier: what the compiler does with prefetch 1, at its price."""
    of = compiled("zero3", HERE)
    orders = behind(of, 0, "G b1", "wait G b0")
    now = answered(setting="zero3", moves=link_of(orders, of.lists))
    assert now["state"] == "proved"
    assert now["price"]["exposed_seconds"] < now["before"]["exposed_seconds"]
    place = now["lists"][0]["order"].index(named(of, 0, "F b0 m0"))
    before = now["before"]["lists"][0]["live_bytes"][named(of, 0, "F b0 m0")]
    assert now["price"]["lists"][0]["live_bytes"][place] - before == of.lists[0].program.buffers["params/b1"]


def test_ranks_that_wait_for_one_another_are_named_with_what_they_wait_for() -> None:
    of = compiled("pipeline", HERE)
    found = answered(setting="pipeline", moves=link_of(behind(of, 1, "wait Y", "Y"), of.lists))
    assert found["price"] is None
    assert "the programs wait for each other" in found["unpriced"]
    told = {(each["rank"], each["at"]["number"]): each["awaited"] for each in found["faults"]}
    assert told == {
        (0, named(of, 0, "wait R< b1 m1 r1")): [{"list": 1, "number": named(of, 1, "S< b1 m1 r0")}],
        (1, named(of, 1, "wait Y")): [{"list": 0, "number": named(of, 0, "Y")}],
    }


def test_ranks_of_different_lists_have_no_price_until_they_are_alike() -> None:
    of = compiled("own-lists", HERE)
    one = behind(of, 1, "wait N", "G head")
    found = answered(setting="own-lists", moves=link_of(one, of.lists))
    assert found["state"] == "proved"
    assert found["price"] is None
    assert "ranks of one have different lists" in found["unpriced"]
    assert answered(setting="own-lists", moves=link_of((one[1], one[1]), of.lists))["price"] is not None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"setting": "zero9"}, "setting = 'zero9': there is none; allowed: zero3, prefetch"),
        ({"cluster": "../x.toml"}, "not one of the board's; allowed: dgx-h100:8"),
        ({"moves": "1-2:3-4"}, "moves: 2 lists, but the setting has 1"),
        ({"moves": "a"}, "list 0: 'a' is no move; what works: 21-18.19x"),
        ({"moves": "2-3..4-5"}, "list 0: '' is no move"),
        ({"moves": "999-3"}, "999-3: allowed: instructions 0 to 53"),
        ({"moves": "2-3.2-4"}, "instruction 2 is moved twice"),
        ({"moves": "2-5.3-5"}, "allowed: places 0 to 53, each for one instruction"),
        ({"moves": "2-53.3x"}, "allowed: places 0 to 52"),
        ({"moves": "4-1"}, "`F embed m0` computes, and stays"),
    ],
)
def test_moves_of_no_program_are_refused_with_what_works(body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        answered(**body)
    assert words in str(caught.value)
    assert not isinstance(caught.value, Malformed)


@pytest.mark.parametrize(
    "body", [{"moves": 3}, {"moves": "1" * 5000}, {"run": "x"}, {"why": "x"}, {"setting": "a" * 50}]
)
def test_a_request_that_the_page_never_makes_is_malformed(body: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        answered(**body)


# Goals


def goal_of(found: Any, name: str) -> Any:
    """A goal of the document."""
    return next(goal for goal in found["goals"] if goal["id"] == name)


@pytest.mark.parametrize("goal", read_goals(), ids=lambda goal: goal.id)
def test_no_goal_is_reached_by_what_it_begins_with(goal: ProgramGoal) -> None:
    opening = goal_of(answered(setting=goal.setting), goal.id)["opening"]
    found = answered(setting=goal.setting, moves=opening, goal=goal.id)
    assert not goal_of(found, goal.id)["reached"]
    assert (found["state"] == "refused") == (goal.broken is not None)
    assert found["link"] == opening


@pytest.mark.grid(1)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("goal", [goal for goal in read_goals() if goal.reach != "deadlock"], ids=lambda goal: goal.id)
def test_a_goal_is_reached(goal: ProgramGoal, cluster: str) -> None:
    of = compiled(goal.setting, cluster)
    orders = {
        "hide-gathers": lambda: _hidden(of),
        "least-memory": lambda: least_memory(of),
        "shorter": lambda: behind(of, 0, "N", "wait G embed"),
        "shorter-pipeline": lambda: behind(of, 1, "wait R> b1 m0 r0", "G head"),
        "out-of-step": lambda: behind(of, 1, "N", "G embed"),
    }.get(goal.id, lambda: unmoved(of).orders)()
    body = {"setting": goal.setting, "cluster": cluster, "moves": link_of(orders, of.lists)}
    assert goal_of(answered(**body, goal=goal.id), goal.id)["reached"]
    assert goal_of(answered(**body), goal.id)["reached"] == (goal.broken is None)  # else it was never begun


def test_a_deadlock_counts_with_the_right_reason_alone() -> None:
    of = compiled("pipeline", HERE)
    body = {"setting": "pipeline", "moves": link_of(behind(of, 1, "wait Y", "Y"), of.lists), "goal": "deadlock"}
    goal = goal_of(answered(**body), "deadlock")
    assert "rank 0 stands before `wait R< b1 m1 r1`" in goal["question"]
    right = f"1-{named(of, 1, 'S< b1 m1 r0')}"
    assert right in [each["value"] for each in goal["answers"]]
    for each in goal["answers"]:
        told = goal_of(answered(**body, why=each["value"]), "deadlock")
        assert told["reached"] == told["answered"] == (each["value"] == right)


def test_a_shorter_step_that_holds_more_reaches_no_goal() -> None:
    of = compiled("prefetch", HERE)
    order = behind(of, 0, "N", "wait G embed")[0]
    order = moved(order, named(of, 0, "X b2"), order.index(named(of, 0, "B b0 m0")) + 1)
    found = answered(setting="prefetch", moves=link_of([order], of.lists))
    goal = goal_of(found, "shorter")
    assert found["state"] == "proved"
    assert goal["yours"] <= goal["at_most"]
    assert found["price"]["peak_bytes"] > goal["limit_bytes"]
    assert not goal["reached"]


# In a browser


class Broken(Exception):
    """A law that an order breaks."""


def _shuffled(of: Compiled, chance: random.Random, moves: int, drop: float, near: int = 1000) -> tuple[Order, ...]:
    """Orders after random moves of at most `near` places; some are taken out, with chance `drop`."""
    orders = list(unmoved(of).orders)
    for _ in range(moves):
        number = chance.randrange(len(orders))
        order, steps = orders[number], of.lists[number].instructions
        which = chance.choice([n for n in order if is_movable(steps[n])])
        place = order.index(which) + chance.randint(-near, near)
        orders[number] = moved(order, which, min(max(0, place), len(order) - 1))
        if chance.random() < drop:
            orders[number] = tuple(n for n in order if n != which)
    return tuple(orders)


def _with_followers(steps: Sequence[Instruction], gather: int) -> set[int]:
    """A gather with the wait and the free that follow it."""
    unit = steps[gather].segment
    after = range(gather + 1, len(steps))
    wait = next(n for n in after if steps[n].op is Op.WAIT and steps[n].handle == f"G {unit}")
    free = next(n for n in after if steps[n].op is Op.FREE and steps[n].segment == unit)
    return {gather, wait, free}


def _run_program(now: Judged) -> Any:
    """The moved programs, as `fourfold.verify` takes them."""
    from fourfold.api.programs import RunProgram

    return RunProgram(now.compiled.resolved, "train", now.programs)


def _hidden(of: Compiled) -> tuple[Order, ...]:
    """Every gather of the one list before the computation before its use."""
    order, steps = unmoved(of).orders[0], of.lists[0].instructions
    for n in [n for n, step in enumerate(steps) if step.op is Op.GATHER]:
        computed = [place for place in range(order.index(n)) if steps[order[place]].op.is_compute]
        tried = moved(order, n, computed[-1]) if computed else order
        if judged(of, [tried]).proved:
            order = tried
    return (order,)


def _values(now: Judged) -> list[Any]:
    """By list: what every instruction reads and what outlives the step, each as the tree of what it was made of. Raises `Broken`
    where a buffer is not there, is in flight, or stays, and where ranks wait for ever."""
    lists = [[own.instructions[n] for n in order] for own, order in zip(now.compiled.lists, now.orders, strict=True)]
    _meet(now, lists)
    return [_of_list(own.program.resident, steps) for own, steps in zip(now.compiled.lists, lists, strict=True)]


def _of_list(resident: Sequence[str], steps: Sequence[Instruction]) -> Any:
    held: dict[str, Any] = {name: name for name in resident}
    flying: dict[str, Instruction] = {}
    seen: dict[tuple[str, int], Any] = {}
    for step in steps:
        filling = {name for each in flying.values() for name in each.writes}
        leaving = {name for each in flying.values() for name in each.reads}
        if step.op is Op.WAIT:
            if step.handle not in flying:
                raise Broken(f"{step.short} joins nothing")
            done = flying.pop(step.handle)
            filling, leaving = filling - {*done.writes}, leaving - {*done.reads}
        for name in step.reads:
            if name not in held or name in filling:
                raise Broken(f"{step.short} reads {name}")
        if (filling | leaving) & {*step.writes, *step.frees}:
            raise Broken(f"{step.short} changes what is in flight")
        if any(name not in held and name not in step.writes for name in step.frees):
            raise Broken(f"{step.short} frees what is not there")
        inputs = tuple((name, hash(held[name])) for name in step.reads)
        key = (step.short, sum(short == step.short for short, _ in seen))
        seen[key] = inputs
        for name in step.writes:
            if step.op.fills and name in held:
                raise Broken(f"{step.short} fills {name} again")
            held[name] = (step.short, inputs, hash(held.get(name)))
        for name in step.frees:
            held.pop(name)
        if step.op.is_start:
            if step.short in flying:
                raise Broken(f"{step.short} is in flight")
            flying[step.short] = step
    if flying or held.keys() != set(resident):
        raise Broken("something stays")
    return {**seen, "left": {name: hash(value) for name, value in held.items()}}


def _meet(now: Judged, lists: Sequence[Sequence[Instruction]]) -> None:
    """Ranks go on one after the other: starting never blocks, joining waits for all who take part. Transfers and collectives of a
    group meet in one order."""
    layout = now.compiled.resolved.layout
    ranks = {rank: steps for own, steps in zip(now.compiled.lists, lists, strict=True) for rank in own.ranks}

    def group(rank: int, step: Instruction) -> tuple[tuple[int, ...], str]:
        if step.op.is_transfer:
            other = layout.group_of(rank, ("pp",))[step.peer or 0]
            way = (rank, other) if step.op.is_send else (other, rank)
            return way, f"{step.op.info.carries} {step.segment} {step.microbatch}"
        axes = sorted({axis for each in step.collectives for axis in each.axes.split("+")})
        return tuple(sorted(layout.group_of(rank, tuple(axes)))), step.short

    started: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    at = dict.fromkeys(ranks, 0)
    joins = {rank: list(_joins(rank, steps, group)) for rank, steps in ranks.items()}
    going = True
    while going:
        going = False
        for rank, steps in ranks.items():
            while at[rank] < len(steps):
                step, (kind, where, number) = steps[at[rank]], joins[rank][at[rank]]
                if kind == "start":
                    started.setdefault((rank, where), []).append(group(rank, step)[1])
                elif kind == "join" and any(len(started.get((each, where), ())) <= number for each in where):
                    break
                at[rank] += 1
                going = True
    if any(at[rank] < len(steps) for rank, steps in ranks.items()):
        raise Broken("waits for ever")
    for (_, where), names in started.items():
        if any(started.get((each, where)) != names for each in where):
            raise Broken(f"{where} meet in different orders")


def _joins(rank: int, steps: Sequence[Instruction], group: Any) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """For each instruction: whether it starts or joins something between ranks, of which group, and which of the group's."""
    counts: dict[tuple[int, ...], int] = {}
    begun: dict[str, tuple[tuple[int, ...], int]] = {}
    for step in steps:
        if step.op.is_start and step.collectives:
            where = group(rank, step)[0]
            number = counts[where] = counts.get(where, -1) + 1
            begun[step.short] = where, number
            yield "start", where, number
        elif step.op is Op.WAIT and step.handle in begun:
            yield "join", *begun.pop(step.handle)
        else:
            yield "none", (), 0
