"""Other ways to compute the pieces of `fused_pieces.py`: formulas for torch.compile, PyTorch's operators, the kernels that a run
may choose, liger-kernel."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw

from fourfold.kernels.backend import LazyModule
from fused_pieces import ADAMW, DECAY, EXPERTS, RATE, Arrays, Input, Piece

Results = tuple[Tensor, ...]
Way = Callable[[Arrays], Results]
EPS = 1e-5
NORMS, LOSSES, POINTWISE = (LazyModule(f"fourfold.kernels.{name}_triton") for name in ("norm", "loss", "pointwise"))
(LOW, HIGH), SMALL = ADAMW.betas, ADAMW.eps


def tensors(piece: Piece, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Random inputs of a piece, the same every time."""
    generator = torch.Generator(device).manual_seed(0)
    return {name: _tensor(each, dtype, device, generator) for name, each in piece.inputs.items()}


def _tensor(given: Input, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Tensor:
    on = {"device": device, "generator": generator}
    if given.kind == "below":
        return torch.randint(given.limit, given.shape, **on)
    if given.kind == "count":
        return torch.full((), 1000, device=device)
    if given.kind == "ends":
        return torch.arange(1, EXPERTS + 1, device=device, dtype=torch.int32) * (given.limit // EXPERTS)
    if given.kind == "zeros":
        return torch.zeros(given.shape, device=device)
    if given.kind == "fp32":
        return torch.rand(given.shape, **on)
    if given.kind in ("cos", "sin"):
        return getattr(torch, given.kind)(10 * torch.rand(given.shape, **on)).to(dtype)
    return torch.randn(given.shape, **on).to(dtype)


def copies(arrays: Arrays) -> dict[str, Tensor]:
    """Copies of the inputs: a piece may overwrite its inputs."""
    return {name: tensor.clone() for name, tensor in arrays.items()}


def off(ours: Results, right: Results) -> float:
    """How far the worst result is off, in proportion to its norm."""
    pairs = [(one.double(), other.double()) for one, other in zip(ours, right, strict=True)]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


def formula(name: str) -> Way | None:
    """The piece as a formula without `out=` and views, which a compiler fuses best; None where it is one operator already."""
    return FORMULAS.get(name)


def operator(name: str, device: torch.device) -> tuple[str, Way] | None:
    """PyTorch's own operator of the piece, and its name."""
    if name == "RMSNorm backward + residual" and device.type != "cuda":
        return None
    return OPERATORS.get(name)


def chosen(name: str, device: torch.device) -> Way | None:
    """The Triton kernels that a run's norms and cross-entropy may take. Raises `ImportError` where they cannot run."""
    if name not in BY_TRITON:
        return None
    if device.type != "cuda" or find_spec("triton") is None:
        raise ImportError("Triton's kernels need CUDA and the package triton")
    return BY_TRITON[name]


def liger(name: str) -> Way | None:
    """liger-kernel's function of the piece. Raises `ImportError` where the package is not installed."""
    if name not in LIGER:
        return None
    if find_spec("liger_kernel") is None:
        raise ImportError("liger-kernel is not installed")
    return LIGER[name]


def _norm(a: Arrays) -> Results:
    return (F.rms_norm(a["x"], a["weight"].shape, a["weight"], EPS),)


def _norm_backward(a: Arrays) -> Results:
    """From the saved 1/rms: dx = s (g w - x s^2 mean(g w x)), dw = sum over tokens of g x s."""
    grad, x, gain, scale = a["grad"].float(), a["x"].float(), a["weight"].float(), a["scale"]
    mean = (grad * gain * x).mean(-1, keepdim=True)
    out = scale * (grad * gain - x * (scale * scale * mean))
    return (out + a["residual"].float()).to(a["x"].dtype), (grad * x * scale).sum(0) + a["weight_grad"]


def _rope(a: Arrays) -> Results:
    first, second = a["x"].chunk(2, dim=-1)
    cos, sin = a["cos"], a["sin"]
    return (torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1),)


def _swiglu(a: Arrays) -> Results:
    gate, up = a["gate_up"].chunk(2, dim=-1)
    return (F.silu(gate) * up,)


def _swiglu_backward(a: Arrays) -> Results:
    gate, up = a["gate_up"].chunk(2, dim=-1)
    share = torch.sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    return (torch.cat((a["grad"] * up * slope, a["grad"] * gate * share), dim=-1),)


def _swiglu_again_backward(a: Arrays) -> Results:
    return *_swiglu(a), *_swiglu_backward(a)


def _cross_entropy(a: Arrays) -> Results:
    logits, target = a["logits"].float(), a["target"]
    level = logits.logsumexp(-1, keepdim=True)
    own = torch.arange(logits.shape[-1], device=logits.device) == target.unsqueeze(-1)
    loss = (level.squeeze(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)).sum()
    return loss, (((logits - level).exp() - own.float()) / a["count"]).to(a["logits"].dtype)


def _to_experts(a: Arrays) -> Results:
    pairs = a["pairs"].shape[0] // a["tokens"].shape[0]
    return (a["tokens"][a["pairs"] // pairs],)


def _back(a: Arrays) -> Results:
    return (a["rows"][a["places"]].sum(1),)


def _adamw(a: Arrays) -> Results:
    """The first update (Loshchilov & Hutter 2019, algorithm 2)."""
    m, v = LOW * a["m"] + (1 - LOW) * a["g"], HIGH * a["v"] + (1 - HIGH) * a["g"] ** 2
    decayed = a["w"] * (1 - RATE * DECAY)
    return (decayed - RATE * (m / (1 - LOW)) / ((v / (1 - HIGH)).sqrt() + SMALL),)


FORMULAS: dict[str, Way] = {
    "RMSNorm": _norm,
    "RMSNorm backward + residual": _norm_backward,
    "RoPE": _rope,
    "SwiGLU": _swiglu,
    "SwiGLU backward": _swiglu_backward,
    "SwiGLU again + backward": _swiglu_again_backward,
    "cross-entropy + gradient": _cross_entropy,
    "token permutation, to experts": _to_experts,
    "token permutation, back": _back,
    "AdamW": _adamw,
}


def _norm_backward_by_operator(a: Arrays) -> Results:
    weight = a["weight"]
    out, grad = torch.ops.aten._fused_rms_norm_backward(
        a["grad"], a["x"], weight.shape, a["scale"], weight, [True, True]
    )
    return out.add_(a["residual"]), a["weight_grad"].add_(grad)


def _cross_entropy_by_operator(a: Arrays) -> Results:
    logits = a["logits"].float().requires_grad_()
    loss = F.cross_entropy(logits, a["target"], reduction="sum")
    (grad,) = torch.autograd.grad(loss, logits, 1.0 / a["count"].to(loss.dtype))
    return loss.detach(), grad.to(a["logits"].dtype)


def _grouped_by_operator(a: Arrays) -> Results:
    return (torch._grouped_mm(a["rows"], a["matrices"], offs=a["ends"]),)


def _adamw_by_list(a: Arrays) -> Results:
    adamw(
        *([a[name]] for name in "wgmv"),
        *([], [torch.zeros(())]),
        foreach=True,
        amsgrad=False,
        beta1=ADAMW.betas[0],
        beta2=ADAMW.betas[1],
        lr=RATE,
        weight_decay=DECAY,
        eps=ADAMW.eps,
        maximize=False,
    )
    return (a["w"],)


OPERATORS: dict[str, tuple[str, Way]] = {
    "RMSNorm": ("F.rms_norm", _norm),
    "RMSNorm backward + residual": ("_fused_rms_norm_backward", _norm_backward_by_operator),
    "cross-entropy + gradient": ("F.cross_entropy", _cross_entropy_by_operator),
    "grouped matmul": ("torch._grouped_mm", _grouped_by_operator),
    "AdamW": ("foreach", _adamw_by_list),
}


def _norm_by_triton(a: Arrays) -> Results:
    return (NORMS.forward(a["x"], a["weight"], EPS)[0],)


def _norm_backward_by_triton(a: Arrays) -> Results:
    out, grad = NORMS.backward(a["grad"], a["x"], a["scale"], a["weight"], a["residual"])
    return out, a["weight_grad"].add_(grad)


def _cross_entropy_by_triton(a: Arrays) -> Results:
    logits, target = a["logits"], a["target"]
    here = target >= 0
    maximum, total, picked = LOSSES.statistics(logits, target, here)
    share = here.float() / a["count"]
    LOSSES.gradient_(logits, target, maximum, share / total, -share)
    return (total.log() + maximum - picked).sum(), logits


def _rope_by_triton(a: Arrays) -> Results:
    POINTWISE.rotate_(a["x"], a["cos"], a["sin"], False, False)
    return (a["x"],)


def _swiglu_by_triton(a: Arrays) -> Results:
    return (POINTWISE.swiglu(a["gate_up"]),)


def _swiglu_backward_by_triton(a: Arrays) -> Results:
    POINTWISE.swiglu_backward_(a["grad"], a["gate_up"])
    return (a["gate_up"],)


def _swiglu_again_backward_by_triton(a: Arrays) -> Results:
    return POINTWISE.swiglu(a["gate_up"]), *_swiglu_backward_by_triton(a)


BY_TRITON: dict[str, Way] = {
    "RMSNorm": _norm_by_triton,
    "RMSNorm backward + residual": _norm_backward_by_triton,
    "cross-entropy + gradient": _cross_entropy_by_triton,
    "RoPE": _rope_by_triton,
    "SwiGLU": _swiglu_by_triton,
    "SwiGLU backward": _swiglu_backward_by_triton,
    "SwiGLU again + backward": _swiglu_again_backward_by_triton,
}


def _norm_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.rms_norm import rms_norm_forward

    return (rms_norm_forward(a["x"], a["weight"], EPS, 0.0, "llama", None)[0],)


def _norm_backward_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.rms_norm import _str_to_casting_mode, calculate_settings, rms_norm_backward

    x, weight = a["x"], a["weight"]
    block, warps = calculate_settings(x.shape[-1])
    scale, mode = a["scale"].view(-1), _str_to_casting_mode["llama"]
    out, grad = rms_norm_backward(a["grad"], x, weight, scale, 0.0, mode, block, warps, True, None)
    return out.add_(a["residual"]), a["weight_grad"].add_(grad)


def _rope_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.rope import rope_forward

    heads = a["x"].transpose(1, 2)
    cos, sin = (torch.cat((a[name], a[name]), dim=-1).squeeze(1) for name in ("cos", "sin"))
    return (rope_forward(heads, heads[:, :1].clone(), cos, sin)[0].transpose(1, 2),)


def _swiglu_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward

    return (swiglu_fused_gate_up_forward(a["gate_up"])[1],)


def _swiglu_backward_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward

    return (swiglu_fused_gate_up_backward(a["gate_up"], a["grad"], in_place=True),)


def _cross_entropy_by_liger(a: Arrays) -> Results:
    from liger_kernel.ops.cross_entropy import cross_entropy_forward

    loss, *_, grad = cross_entropy_forward(
        a["logits"].requires_grad_(), a["target"], None, -100, 0.0, 0.0, "sum", None, False
    )
    return loss, grad.detach().div_(a["count"])


LIGER: dict[str, Way] = {
    "RMSNorm": _norm_by_liger,
    "RMSNorm backward + residual": _norm_backward_by_liger,
    "RoPE": _rope_by_liger,
    "SwiGLU": _swiglu_by_liger,
    "SwiGLU backward": _swiglu_backward_by_liger,
    "cross-entropy + gradient": _cross_entropy_by_liger,
}
