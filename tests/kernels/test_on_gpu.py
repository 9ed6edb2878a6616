"""Back ends of norms, cross-entropy, SwiGLU and rotary embedding are right on a GPU."""

import pytest
import torch

from fourfold.kernels import loss, norm, pointwise
from fourfold.kernels.backend import Backend
from fourfold.kernels.loss import LossCase
from fourfold.kernels.norm import NormCase
from fourfold.kernels.pointwise import PointwiseCase
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [576, 4096, 16384])
@pytest.mark.parametrize("backend", list(norm.BACKENDS.values()), ids=lambda backend: backend.name)
def test_norms(backend: Backend[NormCase], width: int, dtype: torch.dtype) -> None:
    assert norm.KIND.examine(backend, NormCase(rows=1000, width=width, dtype=dtype, device=CUDA, eps=1e-5)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", list(loss.BACKENDS.values()), ids=lambda backend: backend.name)
def test_cross_entropy(backend: Backend[LossCase], dtype: torch.dtype) -> None:
    model = sections_spec(1, sections({}))[0].model
    assert loss.KIND.examine(backend, LossCase(523, 16000, dtype, CUDA, model)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ffn", [1536, 14336])
@pytest.mark.parametrize("backend", list(pointwise.BACKENDS.values()), ids=lambda backend: backend.name)
def test_swiglu_and_rotary_embedding(backend: Backend[PointwiseCase], ffn: int, dtype: torch.dtype) -> None:
    assert pointwise.KIND.examine(backend, PointwiseCase(1000, ffn, 40, 128, dtype, CUDA)) is None
