"""A run in a line or two: the size of its model, and its layout."""

from collections import Counter

from fourfold.launch.resolve import ResolvedRun
from fourfold.program.narrow.steps import state_formats
from fourfold.report.units import format_count


def model_line(run: ResolvedRun) -> str:
    """`llama, 30.1 M parameters: 8 blocks, hidden 512, 8 heads (2 kv) ..., vocabulary 4096`."""
    m = run.model
    kv = f" ({m.num_kv_heads} kv)" if m.num_kv_heads != m.num_heads else ""
    tied = ", tied" if m.tie_embeddings else ""
    return (
        f"{m.family}, {format_count(run.num_parameters)} parameters: {m.num_layers} blocks, hidden {m.hidden_size}, "
        f"{m.num_heads} heads{kv}, ffn {m.ffn_size}, vocabulary {m.vocab_size}{tied}"
    )


def layout_line(run: ResolvedRun) -> str:
    """`4 ranks: pp 2 (1f1b), dp_shard 2, ZeRO-3 | 2 microbatches of 1 x 256 tokens a rank | recompute none | fp32`."""
    layout, spec = run.layout, run.spec
    ranks = layout.world_size
    details = {"pp": f" ({layout.schedule}{f', VPP {layout.virtual_stages}' if layout.virtual_stages > 1 else ''})"}
    details["cp"] = f" ({layout.cp_method})"
    degrees = layout.active(("pp", "dp_replicate", "dp_shard", "cp", "tp"))
    axes = ", ".join(f"{axis} {layout.degree(axis)}{details.get(axis, '')}" for axis in degrees)
    axes += "".join(f", {axis} {degree}" for axis, degree in (("ep", layout.ep), ("etp", layout.etp)) if degree > 1)
    axes += ", experts overlapped" if layout.overlap_experts else ""
    states = ", optimizer states on the host" if layout.offload_optimizer else ""
    order = f", {layout.outermost} outermost" if layout.outermost != "pp" else ""
    data = f": {axes}, ZeRO-{layout.zero}{order}{states}" if ranks > 1 else states.replace(", ", ": ")
    count = layout.num_microbatches
    policies = Counter(layout.recompute[1:-1])
    recompute = next(iter(policies)) if len(policies) == 1 else ", ".join(f"{n} x {p}" for p, n in policies.items())
    if any(layout.offload):
        recompute += f", {sum(layout.offload)} offloaded"
    dtype = spec.compute if not spec.mixed else f"{spec.compute} (master {spec.master}{state_formats(spec)})"
    return (
        f"{ranks} rank{'s' if ranks > 1 else ''}{data} | {count} microbatch{'es' if count > 1 else ''} of "
        f"{layout.microbatch_sequences} x {layout.sequence_length} tokens a rank | recompute {recompute} | {dtype}"
    )


def transport_lines(run: ResolvedRun, where: str) -> list[str]:
    """The transport that the programs are compiled for, which is that of `where`: programs with reductions differ by it."""
    if run.layout.world_size == 1:
        return []
    words = {"exchange": "gloo on CPUs; reductions: exchanges over gloo", "native": "NCCL; reductions: NCCL's own"}
    return [f"compiled for {where}: {words[run.spec.transport]}"]
