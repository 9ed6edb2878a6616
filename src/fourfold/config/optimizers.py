"""The optimizers: each one's keys in the run file, and the state that it keeps beside the weights.

Everything that depends on the optimizer reads `OptimizerSpec`: sizes of buffers, checkpoints, memory, prices, the search's bound.
The arithmetic stands in `runtime/updates.py`. To add an optimizer: its section and its place in `OPTIMIZERS` here, its function
there, a reference implementation in `tests/support/reference_optimizers.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PositiveInt, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from fourfold.config.section import DTYPE_BYTES, Dtype, Section

Weight = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
"""The decay rate of a running mean."""


MatrixPlacement = Literal["auto", "shard", "owner"]
"""Who orthogonalizes a matrix: the ranks whose shards have elements of it, or one rank, or whichever is cheaper."""


@dataclass(frozen=True)
class StateTensor:
    """A tensor that the optimizer keeps, with one element a parameter. `dtype` None: the format of the master weights.
    `of_matrices` False: hidden matrices have none."""

    name: str
    dtype: Dtype | None = None
    of_matrices: bool = True


@dataclass(frozen=True)
class OptimizerSpec:
    """State and traffic of an optimizer. An update is elementwise: a rank updates its shard with its shard of the gradient and
    of the state, and sends nothing. `name`: as in the run file. `orthogonalizes`: the update of a hidden matrix needs all of it
    (`program/muon/matrices.py`); `placement`, `per_head`: where, and in which matrices."""

    name: str
    state: tuple[StateTensor, ...]
    orthogonalizes: bool = False
    placement: MatrixPlacement = "auto"
    per_head: bool = False

    def stored_as(self, dtype: Dtype | None) -> "OptimizerSpec":
        """The optimizer with all states in one format; None: in their own."""
        return self if dtype is None else replace(self, state=tuple(replace(each, dtype=dtype) for each in self.state))

    @property
    def states_own_format(self) -> bool:
        """Whether a state has another format than the master weights, whatever that is."""
        return any(each.dtype is not None for each in self.state)

    def state_bytes(self, master: str, matrix: bool = False) -> int:
        """Bytes of state a parameter, or an element of a hidden matrix; `master`: the format of the master weights."""
        return sum(DTYPE_BYTES[each.dtype or master] for each in self.state if each.of_matrices or not matrix)

    def update_bytes(self, compute: str, master: str, gradients: str, matrix: bool = False) -> int:
        """Bytes that an update moves to and from memory a parameter: it reads the gradient, reads and writes master weights and
        state, and writes the new weights in the compute format where that is another than the master's. It reads the step of
        a matrix that is orthogonalized in place of gradient and state."""
        copied = DTYPE_BYTES[compute] if compute != master else 0
        if matrix and self.orthogonalizes:
            return DTYPE_BYTES[compute] + 2 * DTYPE_BYTES[master] + copied
        return DTYPE_BYTES[gradients] + 2 * (DTYPE_BYTES[master] + self.state_bytes(master)) + copied


class OptimizerSection(Section):
    """The keys that all optimizers have: the learning rate with its warm-up and schedule (`config/learning_rate.py` has the
    formulas), weight decay of the matrices, and clipping of the global gradient norm (`clip_norm = 0`: none)."""

    spec: ClassVar[OptimizerSpec]

    name: str
    """The optimizer: `adamw`, `sgd`, `lion` or `muon`."""
    lr: Annotated[float, Field(gt=0)] = 3e-4
    """Learning rate after warm-up."""
    schedule: Literal["cosine", "linear", "wsd", "constant", "inverse_root", "power", "points", "decay"] = "cosine"
    """Learning rate after warm-up: `cosine` or `linear` decay to the end, `wsd` (constant, then a decay), `constant`,
    `inverse_root` (one over the root of what was done), `power` (`exponent`), straight lines between `points`; in a stage `decay`,
    from the rate that the schedule before it had come to (`decay_shape`)."""
    progress: Literal["steps", "tokens"] = "steps"
    """Unit in which the schedule counts: `steps`, or `tokens`, which differ where the batch grows."""
    rate_at: Literal["ends", "before", "after"] = "ends"
    """Where in a step the schedule is read. `ends`: warm-up behind the step and what follows before it, so that the last step has
    the least rate; `before` it, as Megatron-LM does (warm-up begins with a rate of 0); `after` it, as OLMo-core does."""
    horizon_steps: PositiveInt | None = None
    """Steps from a schedule's start at which it would end, where a stage with another schedule begins before. Left out: it ends
    where it is left."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up from 0. Where they do not fit the run's steps or the final decay, `fourfold train` says so at the
    start."""
    warmup_tokens: PositiveInt | None = None
    """Tokens of linear warm-up, instead of `warmup_steps`."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """`wsd`: share of all steps (or tokens, as `progress` counts), at the end, over which the learning rate falls."""
    decay_steps: PositiveInt | None = None
    """Steps of the final decay of `wsd`, instead of `decay_fraction`; with it `constant`, `inverse_root`, `power` and `points` end
    in a decay too."""
    decay_tokens: PositiveInt | None = None
    """Tokens of the final decay, instead of `decay_steps`."""
    decay_shape: Literal["linear", "sqrt", "cosine", "exponential"] = "linear"
    """The final decay: `linear`, `sqrt` (1 minus the root of its progress; Hägele et al. 2024), `cosine`, or `exponential` (2 x
    0.5^p - 1 at progress p)."""
    exponent: Annotated[float, Field(gt=0)] = 0.51
    """`power`: the rate falls as (warm-up / what was done) to this power (Shen et al. 2024)."""
    points: list[Annotated[tuple[Annotated[int, Field(ge=0)], Weight], Field(strict=False)]] = Field(
        default_factory=list
    )
    """`points`: pairs of a position (steps or tokens, as `progress` counts) and the rate there as a share of `lr`."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Last learning rate, as a share of `lr`."""
    weight_decay: Weight = 0.1
    """Weight decay of matrices; norms and biases are not decayed."""
    clip_norm: Weight | None = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0: no clipping."""
    state_dtype: Literal["bf16"] | None = None
    """Format in which the optimizer's states are stored: `bf16`, rounded stochastically. Left out: that of the master weights."""

    @property
    def step_spec(self) -> OptimizerSpec:
        """The optimizer with these keys, as programs are compiled for it."""
        return self.spec.stored_as(self.state_dtype)

    @field_validator("clip_norm")
    @classmethod
    def _zero_is_none(cls, value: float | None) -> float | None:
        return value or None

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        """A table becomes the section of the optimizer that it names."""
        if cls is not OptimizerSection or not isinstance(value, Mapping):
            return handler(value)
        section = section_of(value)
        if section is None:
            names = ", ".join(map(repr, OPTIMIZERS))
            wrong = InitErrorDetails(type="literal_error", loc=("name",), input=value["name"], ctx={"expected": names})
            raise ValidationError.from_exception_data("optimizer", [wrong])
        return section.model_validate(value)


class AdamWSection(OptimizerSection):
    """AdamW (Loshchilov & Hutter 2019)."""

    spec = OptimizerSpec("adamw", (StateTensor("exp_avg"), StateTensor("exp_avg_sq")))

    name: Literal["adamw"] = "adamw"
    """`adamw` (Loshchilov & Hutter 2019)."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.95)
    """Decay rates of the averages of gradients and of their squares."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of the squares' average."""


class SgdSection(OptimizerSection):
    """Stochastic gradient descent with momentum as in torch.optim.SGD: v <- momentum v + (g + decay w), w <- w - lr v; `nesterov`
    (Sutskever et al. 2013): w <- w - lr (g + decay w + momentum v). Weight decay is part of the gradient."""

    spec = OptimizerSpec("sgd", (StateTensor("momentum_buffer"),))

    name: Literal["sgd"]
    """`sgd`: stochastic gradient descent with momentum."""
    lr: Annotated[float, Field(gt=0)] = 0.1
    """Learning rate after warm-up."""
    weight_decay: Weight = 1e-4
    """Weight decay of matrices, a part of the gradient; norms and biases are not decayed."""
    momentum: Decay = 0.9
    """Share of the velocity that one step keeps."""
    nesterov: bool = False
    """Whether the step looks ahead by the velocity (Sutskever et al. 2013)."""


class LionSection(OptimizerSection):
    """Lion (Chen et al. 2023, algorithm 2): c <- beta1 m + (1 - beta1) g, w <- w - lr (sign(c) + decay w),
    m <- beta2 m + (1 - beta2) g. The step has the same size in every element: the paper takes a third to a tenth of
    AdamW's learning rate."""

    spec = OptimizerSpec("lion", (StateTensor("exp_avg"),))

    name: Literal["lion"]
    """`lion` (Chen et al. 2023): the sign of a mixture of gradient and momentum."""
    lr: Annotated[float, Field(gt=0)] = 3e-5
    """Learning rate after warm-up."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.99)
    """Share of the momentum in the step's direction, and decay rate of the momentum."""


class MuonSection(OptimizerSection):
    """Muon (Jordan et al. 2024) for hidden matrices, as in torch.optim.Muon: the momentum's direction is orthogonalized by five
    Newton-Schulz iterations in the compute format. AdamW for embeddings, the head, norms and biases."""

    spec = OptimizerSpec(
        "muon", (StateTensor("exp_avg"), StateTensor("exp_avg_sq", of_matrices=False)), orthogonalizes=True
    )

    name: Literal["muon"]
    """`muon` (Jordan et al. 2024): momentum of hidden matrices, orthogonalized; AdamW for all else."""
    lr: Annotated[float, Field(gt=0)] = 0.02
    """Learning rate of hidden matrices after warm-up."""
    momentum: Decay = 0.95
    """Decay rate of the matrices' average of gradients."""
    nesterov: bool = True
    """Whether the direction looks ahead by the momentum."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Scale of a matrix [A, B]: `original`, sqrt(max(1, A / B)); `match_rms_adamw`, 0.2 sqrt(max(A, B)) (Liu et al. 2025)."""
    adamw_lr: Annotated[float, Field(gt=0)] = 3e-4
    """AdamW's learning rate after warm-up; it follows the same schedule."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.95)
    """AdamW's decay rates."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's, added to the root of the squares' average."""
    per_head: bool = False
    """Whether MLA's up-projections of queries, keys and values are orthogonalized head by head."""
    placement: MatrixPlacement = "auto"
    """Who orthogonalizes a matrix: `shard`, every rank that has elements of it; `owner`, one rank, which sends the result; `auto`,
    whichever is cheaper for the unit."""

    @property
    def step_spec(self) -> OptimizerSpec:
        return replace(super().step_spec, per_head=self.per_head, placement=self.placement)


OPTIMIZERS: dict[str, type[OptimizerSection]] = {
    section.spec.name: section for section in (AdamWSection, SgdSection, LionSection, MuonSection)
}


def section_of(table: Mapping[str, Any]) -> type[OptimizerSection] | None:
    """The section of the optimizer that a table `[optimizer]` names, AdamW's where it names none; None where there is no such
    optimizer."""
    name = table.get("name", AdamWSection.spec.name)
    return OPTIMIZERS.get(name) if isinstance(name, str) else None
