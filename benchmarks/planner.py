"""The planner's speed: fourfold beside `llm-analysis` and beside torch's own schedule simulator, each where it can do the work.

    pip install llm-analysis==0.2.2          # optional; it needs an older transformers, so give it an environment of its own
    python benchmarks/planner.py --llm-analysis-python PATH/bin/python [--pairs 7] [--markdown FILE] [--skip-search]

Everything runs on one core, as pairs in alternation (A B, B A, ...). Before each of its turns fourfold forgets what it remembered
of earlier ones. A peer that is not installed is left out, and said to be.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fourfold.config import ModelConfig, ModelSection, load_run
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import resolve_run, stated_vocab_size
from fourfold.model.counts import step_flops_per_token
from fourfold.plan.bound import Bounder, Bounds
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.pricing import candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes
from fourfold.program.compiled import CompiledStages
from fourfold.program.schedule import StageTimes, schedule_orders, stage_ranks
from fourfold.program.timeline import timeline
from fourfold.simulate.prediction import StepPrediction, predict_step
from fourfold.simulate.run_prices import prices_for, transport_on
from fourfold.simulate.step import simulate
from planner_peers import LlmAnalysis, Ran, command

MODEL, RUN, CLUSTER, LENGTH, BATCH, NODE = "llama3-405b", "preset:llama3-405b-16k", "h100-24576", 8192, 2048, 8
LLAMA3 = {"tp": 8, "pp": 16, "dp": 128, "zero": 2, "microbatch_sequences": 1, "recompute": "none"}
DEVICES, PUBLISHED_FLOPS, PUBLISHED_SHARE = 16384, 400e12, 0.41  # "The Llama 3 Herd of Models", table 4, row 2
STAGES, MICROBATCHES = 16, 128
INSTALL = "pip install llm-analysis==0.2.2 (in an environment of its own; name its Python with --llm-analysis-python)"
Timed = Callable[[], float]


@dataclass
class Report:
    """Rows of pairs, and lines of everything else; printed as they come."""

    pairs: int
    rows: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(f"- {line}")
        print(line, flush=True)

    def compare(self, what: str, names: tuple[str, str], contenders: tuple[Timed, Timed]) -> None:
        """Seconds of both, in alternation, after one turn each that does not count."""
        seconds: list[list[float]] = [[], []]
        for each in contenders:
            each()
        for pair in range(self.pairs):
            for side in (0, 1) if pair % 2 == 0 else (1, 0):
                seconds[side].append(contenders[side]())
        ratios = [a / b for a, b in zip(*seconds, strict=True)]
        medians = [words(statistics.median(each)) for each in seconds]
        middle, least, most = (
            f"{r:.3g}" if r < 100 else f"{r:,.0f}" for r in (statistics.median(ratios), min(ratios), max(ratios))
        )
        spread = f"{middle} ({least}–{most})"
        self.rows.append(f"| {what} | {' | '.join(names)} | {' | '.join(medians)} | {spread} |")
        print(self.rows[-1], flush=True)

    @property
    def markdown(self) -> str:
        head = (
            "| | fourfold | peer | time | peer's time | ratio, median of pairs (min–max) |\n|---|---|---|---|---|---|"
        )
        return "\n".join([head, *self.rows, "", *self.lines, ""])


def words(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def timed(work: Callable[[], Any]) -> float:
    gc.collect()  # what earlier turns left behind is none of this one's
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fresh(work: Callable[[], Any]) -> float:
    """Seconds of fourfold's work with nothing remembered but the constants it has read from its files."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fourfold.") and name != "fourfold.cost.fitted":
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)) and value.__module__ != "fourfold.cost.fitted":
                    value.cache_clear()
    return timed(work)


def fourfold_command(*arguments: str) -> Ran:
    return command(sys.executable, "-m", "fourfold", *arguments)


def prediction_of(*overrides: str) -> Callable[[], StepPrediction]:
    """Llama 3's step, from the layout to seconds and bytes; files are read before."""
    config, machine = load_run(Path(RUN), overrides), load_cluster(CLUSTER)

    def predict() -> StepPrediction:
        resolved = resolve_run(config, None, stated_vocab_size(config.model, config.data), transport_on(machine))
        return predict_step(resolved.spec, prices_for(resolved.config, resolved.spec, machine))

    return predict


def plan_request(model: ModelConfig) -> Request:
    return Request.of(model, load_cluster(f"{CLUSTER}:{DEVICES}"), LENGTH, BATCH)


def one_layout(report: Report, peer: LlmAnalysis | None, model: ModelConfig) -> None:
    flops = step_flops_per_token(model, LENGTH) * BATCH * LENGTH / DEVICES

    def say(who: str, seconds: float, held: float) -> None:
        memory = f", {held / 1e9:.1f} GB a device" if held else ""
        report.say(f"{who}: a step of {seconds:.2f} s, {flops / seconds / 1e12:.0f} TFLOP/s a device{memory}")

    say("Llama 3 405B on 16,384 H100 (tp 8, pp 16, dp 128), published", flops / PUBLISHED_FLOPS, 0)
    for zero in (2, 1):
        step = prediction_of(f"layout.zero={zero}")()
        say(f"predicted by fourfold, ZeRO-{zero}", step.seconds, max(step.device_bytes))
    predict, request, shape = prediction_of(), plan_request(model), BlockShape(8, 1, "ring", 1, 1, 1, "none")
    ours: tuple[Timed, Timed] = (partial(fresh, predict), lambda: fresh(lambda: Bounder(request).bounds(shape)))
    around = len(Bounder(request).bounds(shape) or ())
    names = ("`predict_step`", f"bounds of {around:,} layouts, with this among them")
    if peer is None:
        for name, each in zip(names, ours, strict=True):
            report.say(f"one layout, {name}: {words(statistics.median(each() for _ in range(report.pairs)))}")
        return
    for share, label in ((1.0, "its default"), (PUBLISHED_SHARE, "the published one, put in")):
        found = peer.ask([LLAMA3], efficiency=share)
        who = f"predicted by llm-analysis {peer.version} at an efficiency of {share:g} ({label})"
        say(who, found["step_seconds"], found["memory_bytes"])
    for name, each in zip(names, ours, strict=True):
        theirs = partial(peer.seconds, [LLAMA3], 200)
        report.compare("one layout, in process", (name, "`LLMAnalysis.training`"), (each, theirs))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.json")
        file.write_text(json.dumps(peer.model))
        command_names = ("`fourfold simulate`", "`llm_analysis.analysis train`")
        both = (
            lambda: fourfold_command("simulate", RUN, "--cluster", CLUSTER).seconds,
            partial(peer.command, file, LLAMA3),
        )
        report.compare("one layout, as a command", command_names, both)


def expressible(bounds: Bounds) -> list[dict[str, Any]]:
    """Layouts that the peer has words for: no schedule but the plain one, no replicas of shards."""
    rows = [bounds.candidate(index) for index in range(len(bounds))]
    return [vars(c) | {"dp": c.dp} for c in rows if c.schedule == "1f1b" and c.dp_replicate == 1]


def many_layouts(report: Report, peer: LlmAnalysis | None, model: ModelConfig) -> None:
    request = plan_request(model)
    shapes = list(block_shapes(request))
    plain = [shape for shape in shapes if shape.cp == 1 and shape.tp <= NODE]

    def bound(which: list[Any]) -> list[Bounds]:
        bounder = Bounder(request)
        return [found for found in map(bounder.bounds, which) if found is not None]

    tables = bound(plain)
    listed, around = [layout for table in tables for layout in expressible(table)], sum(map(len, tables))
    if peer is not None:
        report.compare(
            f"the same {len(listed):,} layouts",
            (f"bounds, of {around:,} with these among them", "a loop"),
            (lambda: fresh(lambda: bound(plain)), partial(peer.seconds, listed)),
        )
    every = sum(map(len, bound(shapes)))
    seconds = statistics.median(fresh(lambda: bound(shapes)) for _ in range(report.pairs))
    report.say(
        f"bounds of all {every:,} layouts on {DEVICES:,} devices: {seconds:.2f} s, {every / seconds:,.0f} a second"
    )
    if peer is not None:
        loop = statistics.median(peer.seconds(listed) for _ in range(report.pairs))
        slower, ours = len(listed) / loop, every / seconds
        report.say(
            f"llm-analysis in its loop: {slower:,.0f} a second; fourfold bounds {ours / slower:.0f} times as many"
        )


def schedules(report: Report, model: ModelConfig) -> None:
    request = Request.of(model, load_cluster(f"{CLUSTER}:2048"), LENGTH, BATCH)
    try:
        from torch_schedules import computed, stepped
    except ImportError:
        return report.say("torch is not installed, its simulator is left out: pip install torch")
    for name, stages in (("1f1b", 1), ("interleaved_1f1b", 8)):
        candidate = Candidate(
            tp=8,
            recompute="none",
            pp=STAGES,
            schedule=name,
            virtual_stages=stages,
            dp_shard=BATCH // MICROBATCHES,
            zero=1,
        )
        times, places = StageTimes.uniform(STAGES * stages), stage_ranks(name, STAGES, stages)

        def drawn(name: str = name, stages: int = stages, times: Any = times, places: Any = places) -> Any:
            return timeline(schedule_orders(name, STAGES, stages, MICROBATCHES), places, times)

        def program(candidate: Candidate = candidate) -> Any:
            spec = candidate_spec(request, candidate)
            return simulate(spec, request.prices(spec.layout))

        kept, in_steps = stepped(STAGES, stages, MICROBATCHES)
        own = [
            [(c.op.name == "FORWARD", c.stage, c.microbatch) for c in order]
            for order in CompiledStages(program().spec).orders(program().spec)
        ]
        if computed(kept) != own:
            sys.exit(f"{name}: torch's order is another one")
        actions, length = sum(map(len, kept.values())), max(map(len, in_steps.values()))
        instructions = sum(len(each.instructions) for each in program().programs)
        theirs = f"lowered, {actions:,} actions in {length:,} steps"
        peer = partial(timed, partial(stepped, STAGES, stages, MICROBATCHES))
        what = f"{name}, {STAGES} ranks, VPP {stages}, {MICROBATCHES} microbatches"
        report.compare(what, ("order and timeline", theirs), (partial(fresh, drawn), peer))
        predict = f"program and simulation, {instructions:,} instructions"
        report.compare(what, (predict, theirs), (partial(fresh, program), peer))


def full_search(report: Report) -> None:
    asked = ["--model", MODEL, "--cluster", CLUSTER, "--sequence-length", str(LENGTH), "--batch-tokens", "16M"]
    seconds, memory, out = fourfold_command("plan", *asked, "--json")
    found = json.loads(out)
    counts, best = found["counts"], found["best"][0]
    report.say(
        f"`fourfold plan {' '.join(asked)}`: {counts['layouts']:,} layouts in {seconds:.1f} s as a command on one core, peak "
        f"{memory:.0f} MB; {counts['timelines']:,} timelines, {counts['simulated']} simulations, {counts['not_searched']:,} "
        f"with a better bound not simulated, {counts['shapes_not_priced']} shapes not reached"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "best.toml")
        batch = {"global_sequences": found["global_sequences"], "sequence_length": LENGTH, "steps": 1}
        table = {"model": {"preset": MODEL}, "batch": batch, "layout": best["layout"], "precision": {"compute": "bf16"}}
        run.write_text(tomli_w.dumps(table))
        again = [fourfold_command("simulate", str(run), "--cluster", CLUSTER) for _ in range(report.pairs)]
    spent = statistics.median(each.seconds for each in again)
    report.say(
        f"`fourfold simulate` of its best ({best['words']}, a step of {best['step_seconds']:.2f} s): {words(spent)} as a command, "
        f"peak {max(each.megabytes for each in again):.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm-analysis-python", default=sys.executable, help="a Python that has llm-analysis")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--skip-search", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report, model = Report(options.pairs), resolve_model(ModelSection(preset=MODEL))
    peer: LlmAnalysis | None = LlmAnalysis(options.llm_analysis_python, model, "h100-sxm-80gb", BATCH, LENGTH)
    if peer is not None and peer.version is None:
        report.say(f"llm-analysis is not installed, its rows are left out: {INSTALL}")
        peer = None
    one_layout(report, peer, model)
    many_layouts(report, peer, model)
    schedules(report, model)
    if not options.skip_search:
        full_search(report)
    if options.markdown:
        options.markdown.write_text(report.markdown)


if __name__ == "__main__":
    main()
