"""The Python API: `plan`, `simulate`, `Program`, `verify` and `train`, as `import fourfold` gives them. The commands call the
same functions, so that numbers, defaults and messages agree."""
