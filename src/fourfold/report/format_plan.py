"""A plan as text: the best layouts, what the heuristic baseline loses, why others lost."""

from fourfold.hardware import cluster_names, load_cluster
from fourfold.plan.planner import Explanation, Plan
from fourfold.plan.pricing import Priced
from fourfold.plan.request import Request
from fourfold.report.format_outlook import advice_lines, format_behind, outlook_lines
from fourfold.report.format_simulation import (
    chosen_ranks,
    communication_lines,
    format_software,
    late_lines,
    matrix_lines,
    memory_lines,
)
from fourfold.report.units import format_bytes, format_count, format_figure, per_cent, seconds_text, spelled_out
from fourfold.report.verdict import interval_lines, verdict_lines
from fourfold.results.fit import fit_of_priced
from fourfold.results.plan import num_within_interval, why_behind

SHOWN_DIFFERENCES = 6
HEAD = f"{'':4}{'step':>9}  {'tokens/s/device':>15}  {'MFU':>6}  {'memory':>8}  {'fits':<13}  layout"
LIKE = 0.0005
"""Share of a step's time below which two are as fast."""


def plan_lines(plan: Plan) -> list[str]:
    """The lines of `fourfold plan`."""
    request, found = plan.request, plan.found
    lines = [*first_lines(plan), *asked_lines(request), ""]
    if not found.best:
        return [*lines, *_nothing(plan), *explanation_lines(plan), "", *_counts(plan)]
    lines += [HEAD, *(row_line(plan, str(i), each) for i, each in enumerate(found.best, 1)), *_within(plan)]
    lines += outlook_lines(plan)
    smaller = [each for each in plan.front if each.memory_bytes < found.best[0].memory_bytes and each not in found.best]
    if smaller:
        lines += ["", "low-memory alternatives:", *(row_line(plan, "", each) for each in smaller)]
    lines += ["", *_best_lines(plan), "", *_heuristic_baseline(plan), *explanation_lines(plan)]
    return [*lines, "", *_counts(plan)]


def first_lines(plan: Plan) -> list[str]:
    """The verdict on the best layout and the advice; none where nothing fits."""
    if plan.best_step is None:
        return []
    return [*verdict_lines(plan.best_step), *advice_lines(plan.advice, plan.best_step), ""]


def asked_lines(request: Request) -> list[str]:
    """The request: devices, batch, software, keys that the search was held to."""
    return [
        f"{request.devices} x {request.cluster.device.name} ({request.cluster.name})",
        f"{request.global_sequences} sequences of {request.sequence_length} tokens a step "
        f"({format_count(request.tokens)} tokens), {request.precision.compute}, software: {format_software(request.template)}",
        *_constraints(request),
    ]


def _within(plan: Plan) -> list[str]:
    """How sure the order is, in lines."""
    number = num_within_interval(plan)
    if plan.best_step is None or number is None:
        return []
    order = f"; 1 to {number} lie within it of one another: measure more than the first" if number > 1 else ""
    return ["", *(f"{line} with the first{order}" for line in interval_lines(plan.best_step))]


def _constraints(request: Request) -> list[str]:
    """The constraints of the search, in a line."""
    sources = request.constraints.sources
    trainers = [f"what {words} can run" for words, limits in sources.items() if limits[0].by]
    stated = [words for words, limits in sources.items() if not limits[0].by]
    stated += [f"layout.{key}={value}" for key, value in request.flags.items()]
    held = [*trainers, *([", ".join(stated)] if stated else [])]
    return [f"searched: {' with '.join(held)}"] if held else []


def format_best_layout(plan: Plan) -> str:
    """The best layout and what is predicted of it, in a line."""
    assert plan.best is not None
    rate = f"{format_figure(plan.tokens_per_second(plan.best))} tokens/s/device"
    where = f"on {plan.request.cluster.key}, software {format_software(plan.request.template)}"
    return f"{plan.best.candidate.words()}: predicted {seconds_text(plan.best.seconds)} a step, {rate}, {where}"


def _best_lines(plan: Plan) -> list[str]:
    """Lines on the best layout: its time, its network and its memory."""
    summary = plan.best_step
    assert summary is not None
    lines = late_lines(summary)
    lines = [f"best layout: {lines[0]}", *lines[1:]]
    traffic = communication_lines(summary)
    lines += ["", *traffic] if traffic else []
    peaks = memory_lines(summary, chosen_ranks(summary.step.simulation.spec.layout.pp, None))
    prices = [f"{way} {seconds_text(seconds)}" for way, seconds in plan.spare_prices.items()]
    if prices and plan.states_price is not None:
        prices[-1] += f"; of optimizer states, offload {seconds_text(plan.states_price)}"
    saving = (
        [f"{'memory':<11}a GB of activations on the fullest device costs a step: {', '.join(prices)}"] if prices else []
    )
    matrices = matrix_lines(summary)
    return [*lines, "", *peaks, *saving, *([""] if matrices else []), *matrices]


def explanation_lines(plan: Plan) -> list[str]:
    """The layouts that were asked about: the best with these fields, and why it loses."""
    return [line for each in plan.explanations for line in ("", *_explanation(plan, each))]


def row_line(plan: Plan, name: str, priced: Priced) -> str:
    """A layout in the table of layouts, under `HEAD`."""
    rate, mfu = format_figure(plan.tokens_per_second(priced)), per_cent(plan.mfu(priced))
    return (
        f"{name:>3} {seconds_text(priced.seconds):>9}  {rate:>15}  {mfu:>6}  "
        f"{format_bytes(priced.memory_bytes):>8}  {fit_of_priced(plan, priced).cell:<13}  {priced.candidate.words()}"
        f"{format_behind(priced, plan.best)}"
    )


def _heuristic_baseline(plan: Plan) -> list[str]:
    if plan.heuristic_baseline is None:
        return [
            "the heuristic baseline: neither FSDP nor tensor, pipeline and data parallelism by rule fits or divides"
        ]
    assert plan.best is not None
    layout = plan.heuristic_baseline.candidate
    recipe = "FSDP over all devices"
    if layout.zero != 3 or layout.tp * layout.pp * layout.ep > 1:
        recipe = "tensor or expert parallelism inside the node, a pipeline across nodes, data for the rest"
    slower = plan.heuristic_baseline.seconds / plan.best.seconds - 1
    verdict = f"loses {per_cent(slower)}" if slower > 0 else "is as fast"
    if slower < -LIKE:
        verdict = f"is {per_cent(-slower)} faster, and behind: {why_behind(plan.heuristic_baseline, plan.best)}"
    if plan.baseline_is_outside:
        verdict = f"is outside of what was searched, and {_beside(slower)}"
    return [f"the heuristic baseline ({recipe}) {verdict}:", row_line(plan, "", plan.heuristic_baseline)]


def _explanation(plan: Plan, explanation: Explanation) -> list[str]:
    asked = ", ".join(f"{key} = {value}" for key, value in explanation.asked.items())
    if explanation.priced is None:
        return [f"with {asked}: {explanation.refused}"]
    assert plan.best is not None
    slower = explanation.priced.seconds / plan.best.seconds - 1
    verdict = f"{per_cent(slower)} slower than the best, since it spends" if slower > LIKE else "the best, or as fast"
    if slower < -LIKE:
        verdict = (
            f"{per_cent(-slower)} faster, and behind the best: {why_behind(explanation.priced, plan.best)}; it spends"
        )
    if not plan.request.permits(explanation.priced.candidate):
        verdict = f"outside of what was searched, and {_beside(slower)}, since it spends"
    lines = [f"with {asked}: {verdict}", row_line(plan, "", explanation.priced)]
    for kind, seconds in explanation.differences[:SHOWN_DIFFERENCES]:
        more = "more" if seconds > 0 else "less"
        lines.append(f"      {seconds_text(abs(seconds))} {more} on {spelled_out(kind)}")
    return lines if abs(slower) > LIKE else lines[:2]


def _beside(slower: float) -> str:
    return f"{per_cent(abs(slower))} {'slower' if slower > 0 else 'faster'} than the best"


def _nothing(plan: Plan) -> list[str]:
    request, smallest = plan.request, plan.found.smallest
    limit = format_bytes(request.memory_bytes)
    if smallest is None and plan.found.refusal is not None:
        return [f"no layout can run; of the last one: {plan.found.refusal}"]
    if smallest is None:
        return [
            f"no layout divides {request.global_sequences} sequences over {request.devices} devices; a batch that works: a "
            f"multiple of {request.devices} sequences"
        ]
    candidate, held = smallest
    counts = plan.found.counts
    seen = counts.simulated + counts.mixed + counts.end_ranks_too_large + counts.least_memory
    open_ = counts.layouts - counts.too_large - seen
    if counts.too_large == counts.layouts and not counts.shapes_not_priced:
        claim = f"nothing fits: of all {counts.layouts:,} layouts, {candidate.words()} needs the least"
    elif seen:
        claim = (
            f"nothing was found to fit: of the {seen:,} layouts whose memory was computed, {candidate.words()} needs the least"
            + (f"; {open_:,} others may fit by their bounds" if open_ > 0 else "")
        )
    else:
        claim = f"nothing was found to fit before the budget was spent (--budget); {candidate.words()} needs the least"
    lines = [f"{claim}: {format_bytes(held)} on a device, which may hold {limit}"]
    if request.constraints.limits:
        rules = f"without {' or without '.join(plan.obstacles)}, " if plan.obstacles else ""
        free = "something may fit, by its bound" if rules else "no single constraint is what rules it out"
        lines.append(f"{rules}{free}")
    if plan.enough is not None:
        name = request.cluster.key.partition(":")[0]
        preset = name in cluster_names() and load_cluster(name).name == request.cluster.name
        how = f"--cluster {name}:{plan.enough}" if preset else f"the cluster file with :{plan.enough} behind its name"
        lines.append(f"the nearest that fits: {plan.enough} devices, {how}")
    return lines


def _counts(plan: Plan) -> list[str]:
    counts = plan.found.counts
    parts = [
        f"{counts.layouts:,} layouts in {plan.found.seconds:.1f} s",
        f"{counts.too_large:,} too large",
        f"{counts.worse_bound:,} slower by their bounds",
        f"{counts.timelines:,} timelines drawn",
        f"{counts.end_ranks_too_large:,} too large on the first or last rank",
        f"{counts.simulated:,} simulated ({counts.simulated_too_large} of them too large)",
        f"{counts.mixed:,} made to fit block by block",
    ]
    lines = [": ".join((parts[0], ", ".join(parts[1:])))]
    if counts.not_searched:
        lines.append(
            f"not simulated, though their bounds are better than the best: {counts.not_searched:,}, which looked slower"
        )
    if counts.shapes_not_priced:
        lines.append(
            f"not searched: {counts.shapes_not_priced:,} ways to share a microbatch: the budget was spent (--budget)"
        )
    return lines
