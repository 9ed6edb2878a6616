"""Run files: model, data, batch, optimizer, cluster, layout; presets of real models."""

from fourfold.config.errors import FinalFailure, RunFailure, UserError, did_you_mean, nearest
from fourfold.config.model_config import ModelConfig
from fourfold.config.model_section import ModelSection
from fourfold.config.presets import preset_names, run_preset_names
from fourfold.config.run_file import dump_run, load_run, parse_run
from fourfold.config.schema import RunConfig
from fourfold.config.section import DTYPE_BYTES
from fourfold.config.stages import num_steps

__all__ = [
    "DTYPE_BYTES",
    "FinalFailure",
    "ModelConfig",
    "ModelSection",
    "RunConfig",
    "RunFailure",
    "UserError",
    "did_you_mean",
    "dump_run",
    "load_run",
    "nearest",
    "num_steps",
    "parse_run",
    "preset_names",
    "run_preset_names",
]
