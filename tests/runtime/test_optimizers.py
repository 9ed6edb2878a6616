"""Every optimizer against its reference under every way of sharding the state, and its state's bytes against those declared."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fourfold.config.optimizers import OPTIMIZERS, AdamWSection, MuonSection, OptimizerSpec, StateTensor
from fourfold.layout import FlatLayout
from fourfold.model import torch_operations
from fourfold.model.newton_schulz import COEFFICIENTS, EPSILON, STEPS, orthogonalize
from fourfold.program import lower_step
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.muon.matrices import hidden_matrices
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.units import build_units
from fourfold.runtime.updates import UPDATES
from fourfold.train.state import no_fill
from tests.support.parity_check import check_split
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.parity_runs import DEEPSEEK_V3, MIXTRAL, run_table
from tests.support.ranks import run_on_ranks
from tests.support.reference_optimizers import REFERENCES, plain_orthogonal

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"zero-{zero}": (2, {"dp_shard": 2, "zero": zero, "microbatch_sequences": 2}) for zero in range(4)},
    "hsdp-1": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "microbatch_sequences": 3}),
    "hsdp-3": (4, {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "microbatch_sequences": 3}),
    "tp": (2, {"tp": 2, "sequence_parallel": True, "microbatch_sequences": 6}),
    "cp-zero-2": (2, {"cp": 2, "zero": 2, "microbatch_sequences": 6}),
    "pp": (2, {"pp": 2, "microbatch_sequences": 3}),
    "pp-tp-tied": (4, {"pp": 2, "tp": 2, "microbatch_sequences": 6}),
}
names = pytest.mark.parametrize("name", OPTIMIZERS)


def _stated(name: str) -> dict[str, Any]:
    return {"name": name, "lr": 0.05, **REFERENCES[name].settings}


@pytest.mark.grid(1)
@names
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_is_the_references(name: str, layout: str) -> None:
    ranks, degrees = LAYOUTS[layout]
    model = {"tie_embeddings": True} if layout.endswith("tied") else {}
    check_split(ranks, layout=degrees, model=model, optimizer=_stated(name), batch={"steps": 3})


@names
def test_experts_and_their_own_shards(name: str) -> None:
    layout = {"dp_shard": 2, "ep": 2, "zero": 1, "microbatch_sequences": 6}
    check_split(2, layout=layout, model=MIXTRAL, optimizer=_stated(name))


@names
def test_defaults_without_clipping_and_decay(name: str) -> None:
    settings = {"name": name, "lr": 0.05, "clip_norm": 0.0, "weight_decay": 0.0}
    check_split(2, layout={"dp_shard": 2, "zero": 1, "microbatch_sequences": 6}, optimizer=settings)


def _matrix_elements(flat: FlatLayout) -> int:
    """Elements of the hidden matrices in the last shard, which has the norms."""
    low, high = flat.shard_range(flat.num_shards - 1)
    matrices = flat.unit not in ("embed", "head")
    return sum(
        max(0, min(end, high) - max(start, low)) for p, start, end in flat.ranges() if matrices and len(p.shape) > 1
    )


@pytest.mark.parametrize("layout", ["zero-0", "zero-1", "zero-3", "hsdp-3", "pp"])
def test_matrices_have_one_state_and_all_else_two(layout: str) -> None:
    """The allocated state of every rank is the declared, but for the norms that other shards have not."""
    ranks, degrees = LAYOUTS[layout]
    table = run_table(layout=degrees, optimizer=_stated("muon"))
    found = {}
    for rank in range(ranks):
        config, view = prepare_rank(rank, table, ranks)
        units = build_units(view, rank, config.optimizer, torch.device("cpu"), no_fill)
        for name, unit in units.items():
            low, high = unit.flat.shard_range(unit.index)
            matrix = sum(
                max(0, min(part.end, high) - max(part.start, low)) for part in hidden_matrices(view.spec, unit.flat)
            )
            sizes = {key: tensor.numel() for key, tensor in unit.optimizer.state.items()}
            assert sizes == {"exp_avg": high - low, "exp_avg_sq": high - low - matrix}
            held = sum(tensor.nbytes for tensor in unit.optimizer.state.values())
            found[name] = max(found.get(name, 0), held)
            assert found[name] <= buffer_bytes(view, f"optimizer/{name}")
    for rank in range(ranks):
        view = prepare_rank(rank, table, ranks)[1]
        assert all(found[name] == buffer_bytes(view, f"optimizer/{name}") for name in view.flats)


@pytest.mark.grid(1)
@names
@pytest.mark.parametrize(("zero", "compute"), [(0, "fp32"), (1, "fp32"), (3, "bf16")])
def test_the_peak_is_the_declared(name: str, zero: int, compute: str) -> None:
    table = run_table(
        model={
            "hidden_size": 192,
            "num_heads": 6,
            "head_dim": 32,
            "ffn_size": 512,
            "vocab_size": 2048,
            "num_layers": 6,
        },
        batch={"global_sequences": 8, "sequence_length": 128, "steps": 1},
        layout={"dp_shard": 2, "zero": zero, "microbatch_sequences": 4},
        precision={"compute": compute},
        optimizer=_stated(name),
    )
    for rank, result in enumerate(run_on_ranks(2, run_rank, table=table, ranks=2, track_memory=True)):
        view = prepare_rank(rank, table, 2)[1]
        program, numel = lower_step(view), sum(flat.shard_numel for flat in view.flats.values())
        state = sum(size for buffer, size in program.buffers.items() if buffer.startswith("optimizer/"))
        one = 4 * sum(_matrix_elements(flat) for flat in view.flats.values()) if name == "muon" else 0
        assert state == 4 * numel * len(OPTIMIZERS[name].spec.state) - one
        assert abs(result["predicted_peak"] / result["peak"] - 1) < 0.005
        assert abs(result["predicted_peak"] - result["peak"]) < 0.1 * state


MORE: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    **{
        f"ep-zero-{zero}": (4, {"dp_shard": 4, "ep": 2, "zero": zero, "microbatch_sequences": 3}, MIXTRAL)
        for zero in (0, 3)
    },
    "cp-zero-3": (2, {"cp": 2, "zero": 3, "microbatch_sequences": 6}, {}),
    "pp-zero-1": (4, {"pp": 2, "dp_shard": 2, "zero": 1, "microbatch_sequences": 3}, {}),
    "pp-hsdp-2": (8, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "zero": 2, "microbatch_sequences": 3}, {}),
    "one-rank": (1, {"microbatch_sequences": 6}, DEEPSEEK_V3),
}


@pytest.mark.parametrize("layout", MORE)
def test_matrices_that_shards_cut_are_orthogonalized_in_full(layout: str) -> None:
    ranks, degrees, model = MORE[layout]
    optimizer = {**_stated("muon"), "adjust_lr": "match_rms_adamw", "nesterov": False}
    check_split(ranks, layout=degrees, model=model, optimizer=optimizer)


@pytest.mark.parametrize("shape", [(48, 20), (20, 48), (32, 32)])
def test_newton_schulz_is_torchs_but_for_bf16(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    own = orthogonalize(torch_operations, matrix)
    assert torch.allclose(own, plain_orthogonal(matrix), rtol=1e-10, atol=1e-12)
    theirs = _zeropower_via_newtonschulz(matrix, COEFFICIENTS, STEPS, EPSILON).double()
    assert (own - theirs).norm() < 0.02 * own.norm()
    assert 0.5 < torch.linalg.svdvals(own).min() <= torch.linalg.svdvals(own).max() < 1.3


@pytest.mark.parametrize("nesterov", [True, False])
def test_two_dimensional_steps_are_torchs(nesterov: bool) -> None:
    """The reference itself, whose Newton-Schulz is in fp64, against torch.optim.Muon, whose is in bf16."""
    torch.manual_seed(0)
    table, matrix = (torch.randn(size, dtype=torch.float64) for size in ((90, 32), (48, 32)))
    weights = [torch.nn.Parameter(each.clone()) for each in (table, matrix)]
    section = MuonSection(name="muon", nesterov=nesterov)
    own = REFERENCES["muon"].make([{"params": weights, "weight_decay": 0.1}], section)
    other = torch.nn.Parameter(matrix.clone())
    theirs = torch.optim.Muon([other], lr=section.lr, weight_decay=0.1, momentum=0.95, nesterov=nesterov)
    for _ in range(3):
        weights[0].grad, other.grad = torch.randn_like(table), torch.randn_like(matrix)
        weights[1].grad = other.grad.clone()
        own.step()
        theirs.step()
    assert (weights[1] - other).norm() < 0.02 * (other - matrix).norm()


def test_state_has_the_format_that_the_spec_states(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = OptimizerSpec("adamw", (StateTensor("a", "bf16"), StateTensor("b")))
    monkeypatch.setattr(AdamWSection, "spec", narrow)
    master = torch.zeros(6, dtype=torch.float64)
    state = ShardOptimizer(AdamWSection(), master, [(0, 3, True, 1.0), (3, 6, False, 1.0)]).state
    assert {key: tensor.dtype for key, tensor in state.items()} == {"a": torch.bfloat16, "b": torch.float64}
    assert sum(tensor.nbytes for tensor in state.values()) == 6 * narrow.state_bytes("fp64")


NUMEL = 4096


class _Allocations(TorchDispatchMode):
    """Notes tensors as large as the weights that an operator made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        known = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.numel() >= NUMEL and each.untyped_storage().data_ptr() not in known:
                self.made.append(str(func))
        return result


def _updated(
    name: str, gradient: Tensor, skip: Tensor | None, divisor: Tensor | None, lr: float | Tensor
) -> list[Tensor]:
    """Weights and state after one update of such that were not zero."""
    section = OPTIMIZERS[name](**_stated(name))
    torch.manual_seed(1)
    weights, *state = (torch.rand(NUMEL) for _ in range(1 + len(section.spec.state)))
    UPDATES[name](weights, gradient.clone(), state, section, lr, torch.tensor(3.0), 0.1, divisor, skip)
    return [weights, *state]


@names
@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)], ids=["number", "tensor"])
def test_an_update_that_is_skipped_changes_nothing(name: str, lr: float | Tensor) -> None:
    """Whatever the gradient holds, bit by bit; and where it is not skipped, the flag changes nothing."""
    torch.manual_seed(0)
    gradient, one = torch.randn(NUMEL), torch.tensor(1.0)
    section = OPTIMIZERS[name](**_stated(name))
    torch.manual_seed(1)
    before = [torch.rand(NUMEL) for _ in range(1 + len(section.spec.state))]
    for bad in (float("nan"), float("inf"), 1.0):
        after = _updated(name, gradient * bad, one, torch.tensor(2.0), lr)
        assert all(map(torch.equal, before, after)), bad
    plain, told = (_updated(name, gradient, skip, None, lr) for skip in (None, torch.tensor(0.0)))
    assert not torch.equal(plain[0], before[0])
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(plain, told, strict=True))


@names
def test_a_gradient_is_divided_and_a_learning_rate_may_be_a_tensor(name: str) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(NUMEL)
    halved = _updated(name, gradient / 4, None, None, 0.05)
    for other in (
        _updated(name, gradient, None, torch.tensor(4.0), 0.05),
        _updated(name, gradient, torch.tensor(0.0), torch.tensor(4.0), torch.tensor(0.05)),
    ):
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(halved, other, strict=True))


@names
@pytest.mark.parametrize("skip", [None, torch.tensor(0.0)], ids=["at once", "on the device"])
def test_nothing_as_large_as_the_weights_is_allocated(name: str, skip: Tensor | None) -> None:
    section = OPTIMIZERS[name](**_stated(name))
    weights, gradient, *state = (torch.rand(NUMEL) for _ in range(2 + len(section.spec.state)))
    with _Allocations() as found:
        UPDATES[name](weights, gradient, state, section, 0.05, torch.tensor(3.0), 0.1, torch.tensor(2.0), skip)
    assert found.made == []
