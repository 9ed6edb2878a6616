"""Moves: functions from a layout to others near it. The search makes those of `MOVES` from the best that it has found; bounds and
advice take some of them too."""
