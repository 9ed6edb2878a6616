"""The run file's `[model]` section: where a model comes from, and the keys of `ModelConfig`, each of which may be left out."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, create_model

from fourfold.config.model_config import ModelConfig, Size, stated_as
from fourfold.config.section import Section


class ModelSource(Section):
    """A decoder, dense or with experts. State `preset`, or `hf`, or the dimensions; a dimension beside a preset overrides it.

    A key that is left out takes the preset's value, then the family's, then the default. 0 turns a part off: `num_experts`
    (dense model), `key_value_rank` (grouped-query attention), `query_rank`, `capacity_factor` (dropless), `sliding_window`,
    `attention_chunk`."""

    described_by: ClassVar[type | None] = None

    preset: str | None = None
    """Name of a built-in model, for example `"llama3-8b"`. A wrong name is answered with the list."""
    hf: str | None = None
    """Folder with a Hugging Face `config.json`, instead of `preset`."""
    initial: str | None = None
    """Folder of safetensors weights that training starts from. Left out: random weights."""
    nearest_to: str | None = None
    """`model_type` of the model that this one stands for: `plan` writes it where it plans the nearest decoder to one that cannot be
    trained. `train` and `job` then want `as_nearest`."""
    lost: list[str] = Field(default_factory=list)
    """The parts of that model that this one lacks, or does otherwise."""
    as_nearest: bool = False
    """Whether to train it though it is another model than `nearest_to`. `--as-nearest` says the same."""
    dropout: Annotated[float, Field(ge=0, le=0)] | None = None
    """0, the only value: train a model without the dropout that the `config.json` of `hf` states. Left out: such a model is
    refused."""
    vocab_multiple: Size | None = None
    """The vocabulary is padded to a multiple of this where `vocab_size` is left out. Default: 64."""


if TYPE_CHECKING:

    class ModelSection(ModelSource):
        """Keys of `ModelConfig` beside those of `ModelSource`."""

        def __init__(self, **keys: Any) -> None: ...
        def __getattr__(self, key: str) -> Any: ...

else:
    ModelSection = create_model(
        "ModelSection", __base__=ModelSource, __doc__=ModelSource.__doc__, **stated_as(ModelConfig)
    )
    ModelSection.described_by = ModelConfig
