"""The process of one rank, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and FOURFOLD_SECRET set.

Exit codes: 0 finished, 1 failure, 2 a mistake in the run, 3 stopped by request after saving; under a supervisor 4, a failure that
would come again. An error is one message on standard error that starts with `error: `.
"""

import errno
import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fourfold.config import FinalFailure, RunFailure, UserError
from fourfold.config.errors import error_text, is_out_of_memory, open_files_advice, raise_file_limit
from fourfold.runtime.allocator import keep_freed_memory
from fourfold.train.exit_record import ExitRecordFile

TRACEBACKS = signal.SIGUSR2
FINISHED, FAILED, MISTAKEN, STOPPED, FINAL = range(5)
_WITHOUT_CURE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EISDIR, errno.ENOTDIR)
)
"""Errors of files that a new start would meet again."""


def run_worker(out: Path) -> int:
    """Trains as one rank of the run in `out`; returns the exit code. Messages go to standard error, and the last to the exit
    record."""
    raise_file_limit()
    record = ExitRecordFile(out, int(os.environ.get("RANK", "0")))

    def end(code: int, message: str) -> int:
        print(f"error: {message}", file=sys.stderr, flush=True)
        return record.say(code, message)

    who = f"rank {os.environ.get('RANK')}"
    try:
        code, is_over = _train(out)
        record.say(code)  # a run that has finished says so before anything else is tried
        if is_over and os.environ.get("RANK") == "0":
            from fourfold.train.ending import sample_at_end

            sample_at_end(out)
        return code
    except UserError as error:
        code = _failed(isinstance(error, FinalFailure)) if isinstance(error, RunFailure) else error.exit_code
        return end(code, str(error))
    except OSError as error:
        file = error.filename2 or error.filename or out
        return end(_failed(error.errno in _WITHOUT_CURE), f"{file}: {error.strerror or error}{_advice(error)}")
    except SystemExit as error:
        return end(FAILED, f"{who}: sys.exit({error.code!r}) in mid-run")
    except (RuntimeError, MemoryError) as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return end(_failed(open_files_advice(error) is not None), f"{who}: {message}{_advice(error)}")
    except Exception as error:
        record.say(FAILED, f"{who}: {error_text(error)}; its calls are in {out / 'logs'}")
        raise


def try_device(out: Path) -> int:
    """Computes a sum on this process's device; the exit code. Whatever is wrong with the device ends the process."""
    import torch

    from fourfold.config import load_run
    from fourfold.train.session import choose_device

    ones = torch.ones(1024, device=choose_device(load_run(out / "run.toml", as_written=True).run))
    return FINISHED if ones.sum().item() == 1024 else FAILED


def _failed(is_final: bool) -> int:
    return FINAL if is_final and "FOURFOLD_GENERATION" in os.environ else FAILED


def _advice(error: Exception) -> str:
    cure = open_files_advice(error)
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        cure = "somebody put a folder or file there since the run began; move it away"
    return f"; {cure}" if cure is not None else ""


def _train(out: Path) -> tuple[int, bool]:
    """The exit code, and whether the run has finished."""
    from fourfold.train.deterministic import be_deterministic
    from fourfold.train.loop import Leg, Training
    from fourfold.train.session import StopSignal, init_rank_context

    _exit_with_parent()
    faulthandler.enable()  # a rank that dies of a fault in compiled code leaves its calls in its log
    _write_tracebacks_on_request(out)
    keep_freed_memory()
    early: list[int] = []
    handlers = {
        n: signal.signal(n, lambda number, frame: early.append(number)) for n in (signal.SIGTERM, signal.SIGINT)
    }
    from fourfold.config import load_run

    section = load_run(out / "run.toml", as_written=True).run
    be_deterministic(section)
    context = init_rank_context(section)
    stop = StopSignal(context)

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested = True

    for number in handlers:
        signal.signal(number, request)
    stop.requested = bool(early)
    try:
        leg = Training(out, context, stop).run()
    except RunFailure:
        raise  # without leaving the group in order: the peers are stuck or gone
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        from fourfold.train.out_of_memory import out_of_memory_around
        from fourfold.train.state import run_stage

        raise out_of_memory_around(error, run_stage(out)[1].config, context) from error
    with suppress(RuntimeError):  # peers that have left already
        context.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return STOPPED if leg is Leg.STOPPED else FINISHED, leg is Leg.FINISHED


def _write_tracebacks_on_request(out: Path) -> None:
    """On `TRACEBACKS` the main thread's calls go to a file of the run, whatever it is doing. Its own alone: frames of a thread that
    runs change under the eyes of a signal's handler, which then dies of SIGSEGV, and the rank with it."""
    with suppress(OSError):  # no descriptor or disk to spare: whoever asks gets no answer
        path = traceback_file(out, int(os.environ["RANK"]))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        faulthandler.register(TRACEBACKS, file=descriptor, all_threads=False)


def traceback_file(out: Path, rank: int) -> Path:
    """Where a rank writes its tracebacks."""
    return out / "logs" / f"rank-{rank:05d}.tracebacks"


def _exit_with_parent() -> None:
    """Ends this process when the launcher that started it (FOURFOLD_PARENT) is gone."""
    parent = os.environ.get("FOURFOLD_PARENT")
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1.0)
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True).start()
