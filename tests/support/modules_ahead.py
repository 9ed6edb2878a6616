"""Multi-token prediction in plain torch on transformers' own blocks (DeepSeek-V3, section 2.2), document by document."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fourfold.config import ModelConfig


class ModulesAhead:
    """The modules, appended to a transformers model under the names of the released weights; `loss`: the mean over modules of each
    one's mean token loss in the full batch."""

    def __init__(self, model: Any, config: ModelConfig, dtype: torch.dtype) -> None:
        self._model, self._depths = model, config.mtp_layers
        self._first = config.num_layers
        for depth in range(config.mtp_layers):
            block = type(model.model.layers[-1])(model.config, config.num_layers + depth)
            block.enorm, block.hnorm = (nn.RMSNorm(config.hidden_size, eps=config.norm_eps) for _ in range(2))
            block.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
            block.shared_head = nn.ModuleDict({"norm": nn.RMSNorm(config.hidden_size, eps=config.norm_eps)})
            model.model.layers.append(block.to(dtype))
        if config.mtp_layers:
            model.model.norm.register_forward_pre_hook(self._see)
        self._hidden: Any = None
        self.loss: Any = 0.0

    def _see(self, module: Any, inputs: Any) -> None:
        self._hidden = inputs[0]

    def begin(self, batch: Any) -> None:
        self.loss = 0.0
        self._batch = batch
        self._counts = [0] * self._depths
        for row, lengths in enumerate(batch.document_lengths):
            start = 0
            for size in lengths:
                for depth in range(1, self._depths + 1):
                    targets = batch.targets[row, start : start + size][depth:]
                    self._counts[depth - 1] += int((targets != -100).sum())
                start += size

    def add(self, row: int, span: slice) -> None:
        """After the model has run on a document alone: its losses, every token k places on looked up by hand."""
        tokens, targets = self._batch.tokens[row, span], self._batch.targets[row, span]
        hidden, model = self._hidden, self._model
        size = len(tokens)
        positions = torch.arange(size).unsqueeze(0)
        for depth in range(1, self._depths + 1):
            block = model.model.layers[self._first + depth - 1]
            shifted = torch.tensor([int(tokens[i + depth]) if i + depth < size else 0 for i in range(size)])
            embedded = model.model.embed_tokens(shifted).unsqueeze(0)
            hidden = block.eh_proj(torch.cat((block.enorm(embedded), block.hnorm(hidden)), -1))
            angles = model.model.rotary_emb(hidden, positions)
            hidden = block(hidden, attention_mask=None, position_ids=positions, position_embeddings=angles)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            kept = max(0, size - depth)
            logits = model.lm_head(block.shared_head["norm"](hidden))[0, :kept]
            total = F.cross_entropy(logits, targets[depth:], ignore_index=-100, reduction="sum")
            self.loss = self.loss + total / max(1, self._counts[depth - 1]) / self._depths
