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
has() { "$PYTHON" -c "import $1" 2>/dev/null; }
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
part "rehearsal of a run of 128 devices" 60 "$PYTHON" -m fourfold train preset:llama3.1-8b-128 --rehearse
if has pytest; then
    part "rehearsal of small layouts" 120 "$PYTHON" -m pytest -q -p no:cacheprovider tests/rehearse
else
    unmeasured "rehearsal of small layouts" "pytest is not installed"
fi
if [ "$cuda" -eq 0 ]; then
    unmeasured "tests on a device (parity with one process on the CPU, peak of memory)" "no CUDA device"
elif has pytest && has transformers; then
    part "tests on a device: parity with one process on the CPU, peak of memory" 90 \
        "$PYTHON" -m pytest -q -p no:cacheprovider -m gpu tests
else
    unmeasured "tests on a device" "pytest or transformers is not installed"
fi
if has tokenizers && has safetensors; then
    part "a short training" 90 "$PYTHON" -m fourfold train examples/stdlib.toml --ranks "$((cuda > 0 ? cuda : 2))" \
        data.tokenizer=bytes batch.steps="$((cuda > 0 ? 50 : 6))" run.sample_tokens=0 --out "$out/run"
else
    unmeasured "a short training" "tokenizers or safetensors is not installed"
fi
part "kernels" 60 "$PYTHON" benchmarks/device.py kernels
part "steps at a sequence of 4096, predicted peaks beside measured, plain torch" 200 "$PYTHON" benchmarks/device.py steps 190
if [ "$cuda" -eq 0 ]; then
    unmeasured "this machine as a cluster file, fourfold calibrate" "no CUDA device"
else
    part "this machine as a cluster file" 120 \
        "$PYTHON" -m fourfold calibrate --out "${OUT:-$out}/device.toml"
fi
echo
echo "$((SECONDS - begun)) s in all"
exit $failed
