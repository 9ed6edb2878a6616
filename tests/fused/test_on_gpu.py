"""Back ends of norms, cross-entropy, SwiGLU and rotary embedding are right on a GPU."""

import pytest
import torch

from fourfold.fused.losses import LossCase
from fourfold.fused.norm_choice import examine
from fourfold.fused.norms import TORCH, TRITON, NormBackend, NormCase
from fourfold.fused.pointwise import PointwiseCase
from fourfold.train import loss_choice, pointwise_choice
from fourfold.train.loss_choice import LossBackend
from fourfold.train.norm_choice import FORMULA
from fourfold.train.pointwise_choice import PointwiseBackend
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [576, 4096, 16384])
@pytest.mark.parametrize("backend", [FORMULA, TORCH, TRITON], ids=lambda backend: backend.name)
def test_norms(backend: NormBackend, width: int, dtype: torch.dtype) -> None:
    assert examine(backend, NormCase(rows=1000, width=width, dtype=dtype, device=CUDA, eps=1e-5)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", list(loss_choice.BACKENDS.values()), ids=lambda backend: backend.name)
def test_cross_entropy(backend: LossBackend, dtype: torch.dtype) -> None:
    model = sections_spec(1, sections({}))[0].model
    assert loss_choice.examine(backend, LossCase(523, 16000, dtype, CUDA), model) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ffn", [1536, 14336])
@pytest.mark.parametrize("backend", list(pointwise_choice.BACKENDS.values()), ids=lambda backend: backend.name)
def test_swiglu_and_rotary_embedding(backend: PointwiseBackend, ffn: int, dtype: torch.dtype) -> None:
    assert pointwise_choice.examine(backend, PointwiseCase(1000, ffn, 40, 128, dtype, CUDA)) is None
