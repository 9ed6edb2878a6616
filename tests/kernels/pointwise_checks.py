"""The Triton kernels of SwiGLU and rotary embedding equal their formulas in fp64, by Triton's interpreter or on a GPU.
`test_triton_kernels` runs this in a process of its own, because triton decides at its import whether it interprets."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.kernels import pointwise_triton
from fourfold.kernels.backend import Backend
from fourfold.kernels.pointwise import KIND, PointwiseCase
from fourfold.model import torch_operations
from fourfold.model.rope import rotate_
from fourfold.model.swiglu import swiglu, swiglu_backward_

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = Backend[PointwiseCase]("triton", {"pointwise": pointwise_triton})
FORMATS = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    rows=st.sampled_from([1, 2, 5]),
    ffn=st.sampled_from([1, 3, 64, 2049]),
    heads=st.sampled_from([1, 3, 5]),
    half=st.sampled_from([1, 3, 8]),
    dtype=FORMATS,
)
def test_kernels_equal_fp64(rows: int, ffn: int, heads: int, half: int, dtype: torch.dtype) -> None:
    assert KIND.examine(BACKEND, PointwiseCase(rows, ffn, heads, 2 * half, dtype, DEVICE)) is None


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    batch=st.sampled_from([1, 3]),
    tables=st.sampled_from(["of a row", "of all tokens"]),
    interleave=st.booleans(),
    inverse=st.booleans(),
)
def test_views_of_larger_tensors_are_computed_in_place(
    batch: int, tables: str, interleave: bool, inverse: bool
) -> None:
    """Heads of q and k within q | k | v, rows of a gate within wider ones: what lies beside them stays as it is."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    seq, heads, width = 4, 3, 6
    x = torch.randn(batch, seq, heads + 2, width, generator=generator, device=DEVICE, dtype=torch.float64)
    angle = torch.randn(seq * (batch if tables == "of all tokens" else 1), 1, width // 2, device=DEVICE).double()
    if tables == "of all tokens":
        cos, sin = (t.view(batch, seq, 1, -1) for t in (angle.cos(), angle.sin()))
    else:
        cos, sin = angle.cos(), angle.sin()
    expected = x.clone()
    rotate_(torch_operations, expected[..., :heads, :], cos, sin, interleave, inverse)
    if not interleave:
        into = expected.clone()
        pointwise_triton.rotate_into(x[..., :heads, :], into[..., :heads, :], cos, sin, inverse)
        torch.testing.assert_close(into, expected, rtol=1e-12, atol=1e-12)
    pointwise_triton.rotate_(x[..., :heads, :], cos, sin, interleave, inverse)
    torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)
    outer, grad = (torch.randn(seq, n, generator=generator, device=DEVICE, dtype=torch.float64) for n in (20, 9))
    expected = outer.clone()
    torch.testing.assert_close(pointwise_triton.swiglu(outer[:, :16]), swiglu(torch_operations, expected[:, :16]))
    swiglu_backward_(torch_operations, [grad[:, :8].clone(), None], expected[:, :16])
    pointwise_triton.swiglu_backward_(grad[:, :8], outer[:, :16])
    torch.testing.assert_close(outer, expected, rtol=1e-12, atol=1e-12)
