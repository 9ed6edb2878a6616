"""Moves: functions from a layout that was simulated to others near it, which the search makes from the best that it has found."""
