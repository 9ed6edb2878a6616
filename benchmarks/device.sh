#!/usr/bin/env bash
# Checks and times one machine's devices in ten minutes, and goes on where it was cut off: bash benchmarks/device.sh --help
# PYTHON names the interpreter. WHEELS: a folder of wheels for what it lacks, where there is no network. Exit code 1 where a part failed.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then PYTHON=python3; [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; fi
export PYTHONPATH="$PWD/src:$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${WHEELS:-}" ]; then
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    "$PYTHON" -m pip install -q --no-index --no-deps --target "$packages" "$WHEELS"/*.whl
    export PYTHONPATH="$PYTHONPATH:$packages"
fi
"$PYTHON" benchmarks/device_all.py "$@"
