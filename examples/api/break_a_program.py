"""Compile the program of a run, look at it, verify it; then drop one instruction and see the program refused.

python examples/api/break_a_program.py
"""

import fourfold as ff

RUN = {
    "model": {"preset": "tiny"},
    "batch": {"global_sequences": 16, "sequence_length": 256, "steps": 100},
    "layout": {"pp": 2, "dp_shard": 2, "zero": 3, "microbatch_sequences": 2},
}

program = ff.Program.of(RUN)
peak = program.memory_peak(pp_rank=0)
print(f"{len(program.lists)} lists for {program.resolved.layout.world_size} ranks; the first begins with")
for index, (step, live) in enumerate(zip(program.instructions()[:6], program.memory_curve(), strict=False)):
    print(f"  #{index} {step.short:14} {live / 1e6:6.1f} MB live")
print(
    f"its memory is highest at #{peak.index}, with {peak.bytes / 1e6:.1f} MB, most of it {next(iter(peak.by_kind()))}"
)

check = ff.verify(program)
assert check.sound
print(f"verified: {check.proofs()[0]['instructions']} instructions, {check.proofs()[0]['collectives']} collectives")

# Without the first wait, the rank would read parameters that are still on their way.
steps = list(program.instructions())
dropped = next(index for index, step in enumerate(steps) if step.short.startswith("wait G"))
broken = program.with_instructions(steps[:dropped] + steps[dropped + 1 :])
refused = ff.verify(broken)
assert not refused
print(f"without #{dropped} `{steps[dropped].short}` it is refused:\n  {refused.faults[0]}")
