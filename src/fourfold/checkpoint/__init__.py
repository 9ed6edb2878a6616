"""Checkpoints: saved so that a half-written one is never seen, verified before they are loaded, and Hugging Face weights."""

from fourfold.checkpoint.convert import export_checkpoint, reshard_checkpoint
from fourfold.checkpoint.folders import checkpoints, latest_checkpoint, step_folders, step_of
from fourfold.checkpoint.huggingface import write_huggingface
from fourfold.checkpoint.load import load_checkpoint
from fourfold.checkpoint.manifest import Manifest, read_manifest
from fourfold.checkpoint.origin import KEPT, Origin, keep_origin, read_origin
from fourfold.checkpoint.reader import ParameterReader, newest_readable, read_parameters
from fourfold.checkpoint.save import SaveFailure, save_checkpoint
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.unit_shard import UnitShard, is_first_of_stage, unit_shard
from fourfold.checkpoint.weight_folder import WeightFolder, fill_from_folder

__all__ = [
    "KEPT",
    "DamagedCheckpoint",
    "Manifest",
    "Origin",
    "ParameterReader",
    "SaveFailure",
    "UnitShard",
    "WeightFolder",
    "checkpoints",
    "export_checkpoint",
    "fill_from_folder",
    "is_first_of_stage",
    "keep_origin",
    "latest_checkpoint",
    "load_checkpoint",
    "newest_readable",
    "read_manifest",
    "read_origin",
    "read_parameters",
    "reshard_checkpoint",
    "save_checkpoint",
    "step_folders",
    "step_of",
    "unit_shard",
    "write_huggingface",
]
