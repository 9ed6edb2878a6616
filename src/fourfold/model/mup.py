"""The maximal update parametrization (muP) as initialisation and learning rates of single parameters (Yang et al. 2022, "Tensor
Programs V", table 3, for Adam).

With m = hidden_size / mup_base_hidden_size, beside the standard parametrization:

    matrices from width to width (attention, feed-forwards, experts)    std / sqrt(m)    lr / m
    matrices from width to a fixed size (unembedding, routers)          std / m          lr / m
    embeddings, positions, norms, biases                                std              lr

Scores are divided by d instead of sqrt(d) where heads widen: as Adam's steps do not depend on the scale of gradients, that is the
query projection with std and lr times sqrt(mup_base_head_dim / head_dim) (lemma J.1). So a model computes the same as any other of
its family, and its weights mean the same elsewhere. Decay is lr x weight_decay, which stays what it is (as in Microsoft's `mup`).
"""

from math import sqrt

from fourfold.config import ModelConfig


def mup_factors(model: ModelConfig, name: str, matrix: bool) -> tuple[float, float]:
    """Factors of std and learning rate of the parameter of this name. `matrix`: not a norm or a bias."""
    if model.mup_base_hidden_size is None:
        return 1.0, 1.0
    m, std, rate = model.hidden_size / model.mup_base_hidden_size, 1.0, 1.0
    if name == "lm_head.weight" or name.endswith("mlp.gate.weight"):
        std = rate = 1 / m
    elif matrix and name.startswith("model.layers."):
        std, rate = 1 / sqrt(m), 1 / m
    if ".q_proj." in name:
        scores = sqrt((model.mup_base_head_dim or model.head_dim) / model.head_dim)
        std, rate = std * scores, rate * scores
    return std, rate
