"""Every back end of attention that runs here equals fp64; and which cases each takes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.kernels.attention import package
from fourfold.kernels.attention.kind import BACKENDS, AttentionCase
from fourfold.model import torch_attention
from fourfold.model.visible import Visible
from tests.support.attention_backends import HEADS, ROWS, WIDTHS, check_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = [torch.float64, torch.float32, torch.bfloat16]
CASE = AttentionCase(1, 128, 8, 1, 64, 64, torch.bfloat16, torch.device("cuda"))
MASKS = ROWS | st.integers(1, 40) | st.tuples(st.integers(1, 20), st.integers(1, 20))


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=25)
@given(
    mask=MASKS,
    dtype=st.sampled_from(FORMATS),
    heads=st.sampled_from(HEADS),
    widths=st.sampled_from(WIDTHS),
    is_strided=st.booleans(),
)
def test_a_back_end_equals_fp64(
    name: str,
    mask: list[int] | tuple[int, int] | int,
    dtype: torch.dtype,
    heads: tuple[int, int],
    widths: tuple[int, int],
    is_strided: bool,
) -> None:
    case = AttentionCase(
        2, 8, heads[0] * heads[1], heads[0], *widths, dtype, torch.device(DEVICE), isinstance(mask, list)
    )
    if BACKENDS[name].refuses(case) is None:
        BACKENDS[name].activate()
        check_backend(BACKENDS[name], mask, dtype, heads, widths, is_strided, DEVICE)


@pytest.mark.parametrize("name", [name for name in ("flash", "tiled") if DEVICE == "cpu"])
def test_some_run_on_a_processor(name: str) -> None:
    assert BACKENDS[name].refuses(replace(CASE, device=torch.device("cpu"))) is None
    check_backend(BACKENDS[name], 33, torch.float32, (1, 8), (192, 128), True)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash", {"dtype": torch.float32}, "bf16 and fp16"),
        ("flash", {"device": torch.device("cpu"), "documents": True}, "one document a call"),
        ("cudnn", {"documents": True}, "no documents"),
        ("cudnn", {"width": 20}, "multiples of 8"),
        ("efficient", {"value_width": 512}, "256 elements at most"),
        ("flash-3", {}, "not installed|registry"),
        ("flash-attn", {}, "not installed"),
        ("triton", {"device": torch.device("cpu")}, "runs on CUDA"),
    ],
)
def test_a_back_end_says_what_it_does_not_take(name: str, changes: dict, reason: str) -> None:
    if "not installed" in reason and BACKENDS[name].refuses(CASE) is None:
        pytest.skip("it is installed here")
    found = BACKENDS[name].refuses(replace(CASE, **changes))
    assert found is not None
    assert any(each in found for each in reason.split("|"))


@pytest.mark.parametrize("name", ["cudnn", "efficient"])
@pytest.mark.parametrize("causal", [True, False])
def test_shapes_of_kernels_that_run_on_a_gpu_alone(name: str, causal: bool) -> None:
    """Torch's own derivation of shapes takes the calls, which is all that can be known of them here."""
    on = {"device": "meta", "dtype": torch.bfloat16}
    q, k, v = torch.empty(2, 40, 8, 24, **on), torch.empty(2, 56, 2, 24, **on), torch.empty(2, 56, 2, 16, **on)
    out, lse = BACKENDS[name].operations.attend(q, k, v, causal, 0.3)
    assert (out.shape, lse.shape, lse.dtype) == ((2, 40, 8, 16), (2, 40, 8), torch.float32)
    if name == "efficient":
        gradients = BACKENDS[name].operations.attend_backward(out, q, k, v, out, lse, causal, 0.3)
        assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("documents", [None, Visible.documents([5, 11])])
def test_the_package_is_called_as_its_own_functions_call_it(
    documents: Visible | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the package's functions: it takes arguments by the package's names, and computes with tiles."""

    class Interface:
        @staticmethod
        def _flash_attn_forward(
            q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
            return_softmax,
        ):  # fmt: skip
            out, lse = BACKENDS["tiled"].operations.attend(q, k, v, causal, softmax_scale)
            return out, lse.transpose(1, 2), None, None

        @staticmethod
        def _flash_attn_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
            window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
        ):  # fmt: skip
            lse = softmax_lse.transpose(1, 2)
            grads = BACKENDS["tiled"].operations.attend_backward(dout, q, k, v, out, lse, causal, softmax_scale)
            for into, grad in zip((dq, dk, dv), grads, strict=True):
                into.copy_(grad)

        @staticmethod
        def _flash_attn_varlen_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
            window_size_left, window_size_right, softcap, alibi_slopes, return_softmax,
        ):  # fmt: skip
            rows, visible = [x.unsqueeze(0) for x in (q, k, v)], Visible.documents(cu_seqlens_q.diff().tolist())
            out, lse = BACKENDS["tiled"].operations.attend(*rows, causal, softmax_scale, visible)
            return out[0], lse[0].t(), None, None

        @staticmethod
        def _flash_attn_varlen_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
            dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
        ):  # fmt: skip
            given = [x.unsqueeze(0) for x in (dout, q, k, v, out, softmax_lse.t())]
            visible = Visible.documents(cu_seqlens_q.diff().tolist())
            grads = BACKENDS["tiled"].operations.attend_backward(*given, causal, softmax_scale, visible)
            for into, grad in zip((dq, dk, dv), grads, strict=True):
                into.copy_(grad[0])

    monkeypatch.setattr(package, "import_module", lambda name: Interface)
    mask = 16 if documents is None else [5, 11]
    check_backend(BACKENDS["flash-attn"], mask, torch.float64, (2, 2), (24, 16))


def test_tiles_that_no_query_sees_are_left_out_of_documents() -> None:
    check_backend(BACKENDS["tiled"], [130, 3], torch.float64, (2, 1), (64, 64))


def test_a_document_of_one_token_is_not_taken_for_decoding() -> None:
    *_, longest, _ = torch_attention.document_ends(torch.empty(1, 3, 1, 8), Visible.documents([1, 1, 1]))
    assert longest == 2
