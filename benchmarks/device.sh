#!/usr/bin/env bash
# Checks and times one machine's CUDA devices in under ten minutes: bash benchmarks/device.sh
# Each part has its own limit of time; one that fails or cannot run does not stop the others. Lines that begin with "unmeasured:" say
# what was not measured, and why. PYTHON names the interpreter. Exit code 1 where a part failed.
set -u
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then PYTHON=python3; [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; fi
export PYTHONPATH="$PWD/src:$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
begun=$SECONDS

cuda=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)') || exit 1
has() { "$PYTHON" -c 'import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]' "$@" 2>/dev/null; }
unmeasured() { echo "unmeasured: $1: $2"; }

part() { # name, seconds, command...
    local name=$1 limit=$2 start=$SECONDS left=$((590 - SECONDS + begun)) code
    shift 2
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -lt 5 ]; then unmeasured "$name" "the ten minutes are used up"; return; fi
    echo
    echo "== $name"
    timeout "$limit" "$@" 2>"$out/errors"
    code=$?
    if [ $code -eq 124 ]; then unmeasured "the rest of $name" "its $limit s are used up"
    elif [ $code -ne 0 ]; then echo "FAILED with exit code $code:"; tail -5 "$out/errors"; failed=1; fi
    echo "-- $((SECONDS - start)) s"
}

part "machine" 30 "$PYTHON" benchmarks/device.py machine
if ! has cyclopts fsspec numpy pydantic rich tomli_w; then
    unmeasured "everything else" "pip install -e . brings the packages that are missing"
    exit 1
fi
if [ "$cuda" -eq 0 ]; then
    unmeasured "tests on a device (parity with one process on the CPU, peak of memory)" "no CUDA device"
elif has pytest transformers; then
    # the files that hold such tests alone: others need packages that a device's machine may lack
    mapfile -t tests < <(grep -rlE "mark\.gpu\b" tests --include='test_*.py')
    part "tests on a device: parity with one process on the CPU, peak of memory" 90 \
        "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu "${tests[@]}"
else
    unmeasured "tests on a device" "pytest or transformers is not installed"
fi
device="${OUT:-$out}/this-device.toml"
rm -f "$device"
part "this device as a file" 75 "$PYTHON" -m fourfold calibrate --out "$device" \
    --device "$([ "$cuda" -eq 0 ] && echo cpu || echo cuda)" --seconds "$([ "$cuda" -eq 0 ] && echo 10 || echo 50)"
part "kernels" 60 "$PYTHON" benchmarks/device.py kernels
part "memory-bound pieces, torch.compile and libraries beside them" 60 "$PYTHON" benchmarks/device_pieces.py
part "steps at a sequence of 4096, predictions beside them, plain torch" 240 "$PYTHON" benchmarks/device.py steps 230 "$device"
if has tokenizers safetensors xxhash zstandard; then
    part "a short training" 90 "$PYTHON" -m fourfold train examples/stdlib.toml --ranks "$((cuda > 0 ? cuda : 2))" \
        data.tokenizer=bytes batch.steps="$((cuda > 0 ? 50 : 6))" run.sample_tokens=0 --out "$out/run"
else
    unmeasured "a short training" "tokenizers, safetensors, xxhash or zstandard is not installed"
fi
part "rehearsal of a run of 128 devices" 60 "$PYTHON" -m fourfold train preset:llama3.1-8b-128 --rehearse
if has pytest; then
    part "rehearsal of small layouts" 120 "$PYTHON" -m pytest -q -p no:cacheprovider tests/rehearse
else
    unmeasured "rehearsal of small layouts" "pytest is not installed"
fi
echo
echo "$((SECONDS - begun)) s in all"
exit $failed
