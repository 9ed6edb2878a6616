"""Answers as frozen records, from which JSON, schemas and TypeScript derive: a plan, a simulation, a comparison, a run."""
