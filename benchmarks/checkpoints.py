"""Saves and loads of a training state side by side with safetensors and torch.distributed.checkpoint, and how long a save beside
training holds up a step.

    python benchmarks/checkpoints.py --directory /path/on/the/disk --layers 12 --pairs 5

One rank's weights and AdamW states. Every contender waits until the bytes are on the disk, and loads into tensors that are there.
fourfold alone checks what it loads. Contenders take turns; figures are medians, in seconds for a GB.
"""

import argparse
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import HashStore

from fourfold.checkpoint.file_bytes import default_hash
from fourfold.config import RunConfig, parse_run
from fourfold.launch.resolve import resolve_run
from fourfold.program import RankView, rank_view
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import build_units
from fourfold.train import state
from fourfold.train.saver import Saver


class State:
    """One rank's state, filled with noise, and the ways of saving it."""

    def __init__(self, layers: int, root: Path) -> None:
        model = {"num_layers": layers, "hidden_size": 1024, "num_heads": 16, "ffn_size": 2816, "vocab_size": 32000}
        table = {
            "model": model,
            "batch": {"global_sequences": 1, "sequence_length": 128, "steps": 1},
            "checkpoint": {"every_steps": 1, "keep": 1, "directory": str(root / "fourfold")},
        }
        self.root = root
        self.config: RunConfig = parse_run(table)
        spec = resolve_run(self.config, 1, None).spec
        self.view: RankView = rank_view(spec, 0)
        cpu = torch.device("cpu")
        self.units = build_units(self.view, 0, self.config.optimizer, cpu, lambda flat, index, out: out.normal_())
        for unit in self.units.values():
            for tensor in unit.optimizer.state.values():
                tensor.normal_()
        self.routers = Routers(self.view, [], cpu)
        self.tensors: dict[str, Tensor] = state.written_tensors(self.view, self.units, self.routers, 0)
        self.gigabytes = sum(tensor.nbytes for tensor in self.tensors.values()) / 1e9

    def save_fourfold(self) -> None:
        state.save(self.config, self.root, self.view, self.units, self.routers, 1, {}, 0, lambda: None)

    def load_fourfold(self) -> None:
        path = self.root / "fourfold" / "step-000001"
        state.restore(path, self.view, self.units, self.routers, 0)

    def save_safetensors(self) -> None:
        save_file(self.tensors, self.root / "state.safetensors")
        descriptor = os.open(self.root / "state.safetensors", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def load_safetensors(self) -> None:
        for name, tensor in load_file(self.root / "state.safetensors").items():
            self.tensors[name].copy_(tensor)

    def save_torch(self) -> None:
        shutil.rmtree(self.root / "dcp", ignore_errors=True)
        dcp.save(self.tensors, storage_writer=dcp.FileSystemWriter(self.root / "dcp", sync_files=True))

    def load_torch(self) -> None:
        dcp.load(self.tensors, checkpoint_id=self.root / "dcp")


def seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def side_by_side(own: State, pairs: int) -> dict[str, dict[str, float]]:
    """{contender: {"save" | "load": median seconds for a GB}}."""
    names = ("fourfold", "safetensors", "torch")
    found: dict[str, dict[str, list[float]]] = {name: {"save": [], "load": []} for name in names}
    for turn in range(pairs + 1):
        for name in names[:: 1 if turn % 2 else -1]:
            for kind in ("save", "load"):
                figure = seconds(getattr(own, f"{kind}_{name}")) / own.gigabytes
                if turn:  # the first turn warms up
                    found[name][kind].append(figure)
    return {name: {kind: statistics.median(figures) for kind, figures in both.items()} for name, both in found.items()}


def held_up(own: State, pairs: int) -> tuple[float, float]:
    """Median seconds for a GB: that a step stands still for a save beside training, and that a plain copy takes."""
    saver = Saver(
        own.config, own.root, own.view, own.units, own.routers, 0, StoreBarrier(HashStore(), "save", 1, 600.0)
    )
    saver.wait()
    plain = {name: torch.zeros_like(tensor) for name, tensor in own.tensors.items()}
    held, copied = [], []

    def copy() -> None:
        for name, tensor in own.tensors.items():
            plain[name].copy_(tensor)

    for step in range(1, pairs + 2):
        copied.append(seconds(copy))
        held.append(seconds(lambda step=step: saver.begin(step, {})))
        saver.wait()
        saver.ended()
    return statistics.median(held[1:]) / own.gigabytes, statistics.median(copied[1:]) / own.gigabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("checkpoint-benchmark"))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed")
    root = options.directory.absolute()
    root.mkdir(parents=True)
    try:
        own = State(options.layers, root)
        print(
            f"{own.gigabytes:.2f} GB of state, chunks hashed with {default_hash()}, {torch.get_num_threads()} threads\n"
        )
        print("| | save s/GB | of safetensors' | load s/GB | of safetensors' |\n|---|---|---|---|---|")
        found = side_by_side(own, options.pairs)
        base = found["safetensors"]
        for name, both in found.items():
            save, load = both["save"], both["load"]
            print(f"| {name} | {save:.2f} | {save / base['save']:.2f} x | {load:.2f} | {load / base['load']:.2f} x |")
        held, copied = held_up(own, options.pairs)
        print(f"\nA step is held up for {held:.3f} s/GB; a plain copy takes {copied:.3f} s/GB ({held / copied:.2f} x).")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
