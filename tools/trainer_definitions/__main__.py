"""Writes what other trainers take into `tests/export/definitions`, from copies of their sources.

    python -m tools.trainer_definitions megatron MEGATRON_LM
    python -m tools.trainer_definitions megatron-deepspeed MEGATRON_DEEPSPEED
    python -m tools.trainer_definitions bridge MEGATRON_BRIDGE MEGATRON_LM
    python -m tools.trainer_definitions torchtitan SITE_PACKAGES

The copies are git repositories, whose newest commit is read, or folders. Nothing of them is imported or run. The files
hold names, types and choices, and say from which version they are.
"""

import ast
import sys
from pathlib import Path

from tools.trainer_definitions.flags import flags_of
from tools.trainer_definitions.names import BRIDGE, TORCHTITAN
from tools.trainer_definitions.source import Sources, Tree

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "export" / "definitions"
PARSERS = {
    "megatron": ("NVIDIA/Megatron-LM", "megatron.training.arguments", "_add_"),
    "megatron-deepspeed": ("deepspeedai/Megatron-DeepSpeed", "megatron.arguments", "_add_"),
}
CONFIGS = {"bridge": ("NVIDIA-NeMo/Megatron-Bridge", "src/", BRIDGE), "torchtitan": ("torchtitan", "", TORCHTITAN)}


def main(trainer: str, *folders: str) -> None:
    """Writes one trainer's file."""
    if trainer in PARSERS:
        project, module, functions = PARSERS[trainer]
        tree = Tree(Path(folders[0]))
        lines = [f"{name} {what}" for name, what in flags_of(Sources(tree), module, functions).items()]
    else:
        project, inside, names = CONFIGS[trainer]
        tree = Tree(Path(folders[0]), inside)
        sources = Sources(tree, *(Tree(Path(folder)) for folder in folders[1:]))
        lines = [line for module, members in names.items() for line in _taken(sources, module, members)]
    path = FOLDER / f"{trainer}.txt"
    path.write_text("\n".join([f"# {project} {tree.version(trainer)}", *lines]) + "\n")
    print(f"{path}: {len(lines)} lines")


def _taken(sources: Sources, module: str, members: list[str]) -> list[str]:
    """A line `module:member` for every function and dataclass, or the dataclass `Config` in a class; below it its keyword
    arguments, `  name annotation`."""
    found = []
    for name in members:
        member = sources.configuration(module, name)
        taken = sources.parameters(module, member).values()
        found += [f"{module}:{member}", *(f"  {field.name} {ast.unparse(field.annotation)}" for field in taken)]
    return found


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in {**PARSERS, **CONFIGS}:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
