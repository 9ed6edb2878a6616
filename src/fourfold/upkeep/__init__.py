"""The care of a run's checkpoints beside training: copies to another place, exports to Hugging Face folders.

    launcher ─► python -m fourfold.upkeep RUN ─► copying, exporting ─► events, .upkeep.json ─► what old checkpoints wait for

One process of the launch that leads does it, from the files alone: no rank waits for it, and whatever it meets is an event. It ends
when the launcher closes its standard input and nothing is left to do."""
