"""Plan a model on a cluster, pick among the fastest layouts, and look closer at the one that was picked.

python examples/api/plan_and_pick.py
"""

import fourfold as ff

result = ff.plan(model="llama3-8b", cluster="dgx-h100:16", sequence_length=8192, batch_tokens="1M", keep=5)
assert result.best is not None, "nothing fits: take a larger cluster"

print(f"{len(result.layouts)} layouts of {result.request.model.num_layers} blocks on {result.request.devices} devices:")
for layout in result.layouts:
    print(f"  {layout.seconds:6.3f} s  {layout.memory_bytes / 1e9:5.1f} GB  {layout.candidate.words()}")

# Of the layouts within 2 % of the fastest, the one that needs the least memory.
close = [layout for layout in result.layouts if layout.seconds <= 1.02 * result.best.seconds]
picked = min(close, key=lambda layout: layout.memory_bytes)

run = result.run(picked)  # a run like one from a file: simulate, verify and train take it
step = ff.simulate(run, cluster="dgx-h100:16", tokens="1T", price=2.5)
assert step.step_seconds == picked.seconds, "the plan's price is the simulation's"
print(f"picked: {picked.candidate.words()}")
print(f"  MFU {100 * step.mfu:.1f} %, {step.memory_bytes / 1e9:.1f} GB of {step.summary.device.memory_bytes / 1e9:.1f}")
if step.campaign is not None and step.campaign.dollars is not None:
    print(f"  1T tokens: {step.campaign.seconds / 86400:.0f} days, {step.campaign.dollars:,.0f} dollars")
