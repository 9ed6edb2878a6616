"""Simulate a run under several layouts, and print a table.

python examples/api/sweep_layouts.py
"""

import fourfold as ff

RUN = {
    "model": {"preset": "llama3-70b"},
    "batch": {"global_sequences": 256, "sequence_length": 8192},
    "precision": {"compute": "bf16"},
}
DEVICES = 64
SWEEP = [
    {"layout.tp": tp, "layout.pp": pp, "layout.zero": zero, "layout.recompute": recompute}
    for tp, pp, zero in ((1, 1, 3), (4, 1, 3), (8, 1, 3), (8, 4, 1), (8, 2, 1), (8, 3, 1))
    for recompute in ("none", "selective")
]

print(f"{'tp':>2} {'pp':>3} {'ZeRO':>5}  {'recompute':9}  {'step':>9}  {'MFU':>7}  {'memory':>9}")
for overrides in SWEEP:
    tp, pp, zero, recompute = overrides.values()
    name = f"{tp:>2} {pp:>3} {zero:>5}  {recompute:9}"
    try:
        step = ff.simulate(RUN, overrides, cluster=f"dgx-h100:{DEVICES}", ranks=DEVICES)
    except ff.UserError as error:  # a layout that cannot be: the message names the key and what would work
        print(f"{name}  cannot be: {error}")
        continue
    memory = f"{step.memory_bytes / 1e9:6.1f} GB{'' if step.fits else ', does not fit'}"
    print(f"{name}  {step.step_seconds:7.2f} s  {100 * step.mfu:5.1f} %  {memory}")
