"""Prices a program: its timeline, memory, communication, critical path. No torch."""
