"""Settings that published rows leave out: what is taken instead, one sentence each. Printed by the command and in the docs."""

from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")

DEFAULTS: dict[str, str] = {
    "vocab_size": "The vocabulary of the model or trainer of that name: 32000 for Mixtral, 129280 for DeepSeek-V3, 256000 for "
    "Nemotron, 50257 for tests that use GPT-2's tokenizer, 51200 otherwise.",
    "vocab_padding": "Megatron, NeMo and their forks pad the vocabulary to a multiple of 128 x tp; others to a multiple of tp.",
    "num_kv_heads": "As many key and value heads as heads.",
    "head_dim": "hidden_size / num_heads.",
    "gated": "A feed-forward is gated (SwiGLU) where the model has experts or MLA, or its name is of the Llama, Qwen, "
    "Mistral or DeepSeek families; otherwise it is GPT's.",
    "gpt_options": "A model without a gated feed-forward is GPT-2's kind: LayerNorm, GELU, biases, learned positions.",
    "squared_relu": "Squared ReLU costs what GELU costs; such models (Nemotron-4) have rotary positions and no biases.",
    "no_bias": "MPT and models trained with biases disabled have none.",
    "tie_embeddings": "GPT-2's kind shares embedding and unembedding; Llama's kind and Nemotron do not.",
    "multi_token": "DeepSeek-V3 trains one MTP module, unless the row says without; a copy cut to fewer layers has none.",
    "sliding_window": "GPT-OSS attends within 128 tokens in half of its layers, Gemma 2 within 4,096 in half, Gemma 3 within 1,024 "
    "in five of six: every layer is priced with the mean of their work. What a row states of windows wins.",
    "documents": "Attention within documents packed together, of lengths that the row does not state: 512 tokens on average.",
    "eager": "A row that says that nothing is compiled runs one operator after the other, as eager torch does.",
    "graphs": "CUDA graphs of all of a step, as a row says or runs of MLPerf, leave the host nothing to do.",
    "layer_norm": "Models with experts or MLA have RMSNorm here, whatever the trainer's norm.",
    "gated_experts": "Experts without a gate are predicted as gated ones of two thirds of their size: as many weights.",
    "gated_bias": "A gated feed-forward has no biases here, whatever the trainer's.",
    "known_model": "The dimensions of a public model that is named but not described are those of its released configuration.",
    "tp": "tp, pp, cp and ep are 1 where the layout is stated in part and does not name them.",
    "dp": "Data parallelism takes the devices that pp, cp and tp leave.",
    "num_devices": "As many devices as the degrees ask for.",
    "etp": "Experts are split by etp = 1 in recipes of Megatron Bridge; elsewhere by tp where the group allows, as Megatron does.",
    "software": "A trainer that nobody names is taken as Megatron with a pipeline or with tensor parallelism on 64 devices or "
    "more, where it has no FSDP, as MaxText on a TPU.",
    "zero": "NeMo, Megatron Bridge and their recipes have the distributed optimizer (ZeRO-1), Megatron from 2023 on, and whoever "
    "speaks of one; FSDP is ZeRO-3; others ZeRO-0. Where it is not stated and the run would not fit, ZeRO-1, then, without a "
    "pipeline, ZeRO-3.",
    "fsdp_kept": "FSDP that keeps parameters gathered after the forward is ZeRO-2; in a pipeline, where torch's FSDP keeps them "
    "and sums gradients once a step, ZeRO-1.",
    "sequence_parallel": "Sequence parallelism is on with tp > 1 in Megatron from 2022 and in its forks; off before and elsewhere.",
    "cp_method": "Context parallelism is a ring; keys and values are gathered at Meta and in MaxText; heads are exchanged where a "
    "row names Ulysses, as far as they divide.",
    "schedule": "1F1B; interleaved where a rank has several stages.",
    "even_stages": "Megatron and its forks divide blocks evenly among stages, embedding and head on top; others divide by cost.",
    "virtual_stages": "An interleaved schedule whose stages are not stated has the fewest that divide a rank's layers evenly; in "
    "the zero-bubble paper and at Meta one segment each.",
    "dualpipe": "DualPipe is simulated as its V-shaped form, DualPipe-V: same order, half the copies of parameters.",
    "zero_bubble": "ZB-1p is simulated as ZB-H1 and ZB-2p as ZB-H2, the hand-made schedules with the same memory.",
    "microbatch_sequences": "global batch / (dp x accumulation) where both are stated; else, without a pipeline, all of a rank's "
    "sequences up to 8, or their largest part up to 8 and 32,768 tokens; 1 with a pipeline, and of experts in Megatron and its "
    "forks. Where that would not fit, half of it, and again.",
    "accumulation": "Where neither the batch nor the accumulation is stated, as many microbatches as make 524,288 tokens a step, "
    "and 4 x pp at least with a pipeline.",
    "global_sequences": "microbatch x accumulation x dp.",
    "recompute": "Full in Megatron of 2020 and 2021 and where the row assumes it; selective in MaxText and Paxml, which keep the "
    "products and rebuild what is cheap; else none. Where it is not stated and the run would not fit, the matrix of scores alone "
    "in Megatron and its forks that write it, then selective; it counts as fitting where it would in full.",
    "recompute_counted": "Full where it is not stated and the source's own FLOPs count a full recomputation.",
    "offload_optimizer": "With optimizer states in the host's memory, each parameter's 16 bytes (gradient, optimizer "
    "states, new values) pass a link of 25 GB/s after every step; memory is not predicted.",
    "offload_activations": "Activations that lie in the host's memory are taken to travel beside computation; memory is "
    "not predicted.",
    "recompute_attention": "Selective recomputation of the attention core alone keeps all but the attention matrix, which fused "
    "attention never writes.",
    "recompute_products": "torchtitan's selective recomputation keeps every other product: taken as full in every other block.",
    "recompute_experts": "torchtitan's selective recomputation makes the products of experts again: taken as full in every block.",
    "recompute_modules": "Recomputation of single modules is the nearest of none, selective and full.",
    "precision": "bf16 products, fp32 master weights, optimizer states and sums of gradients; in MLPerf on Hopper and "
    "Blackwell fp8 products. One device that would not hold that has weights and optimizer states in 16 bits, where "
    "the row says nothing of them.",
    "fp8_flavour": "FP8 without a flavour has one scale a tensor; a finer one is MXFP8 on Blackwell and blocks of 128 before it.",
    "gradients": "torch's FSDP of 2023 (llm-foundry, fms-fsdp, Modalities), DeepSpeed, Colossal-AI and InternEvo sum "
    "gradients in the format computed in, without autocast, and so do the recipes behind NeMo's own tables since 2024; Megatron in "
    "fp32 with bf16 and in fp16 with fp16; Megatron-DeepSpeed in fp32.",
    "device": "A100 and H100 without a form factor are SXM; A100 without a size has 80 GB; regression values without a device are "
    "of an A100.",
    "stated_device": "A device that no table has is made of the peak and the memory that its row states, its memory's speed one "
    "byte for 240 FLOP.",
    "devices_per_node": "8 devices a node; 4 for GB200, GB300, GH200 and TPU; 16 for a DGX-2 of V100.",
    "internode": "A rate of the network of which nobody says whether a card or a node has it is each device's where devices of "
    "such machines usually have it, else a node's.",
    "network": "A network that is not stated is that of the first cluster file with such devices; 400 Gb/s a device for MI300X, "
    "its family and GB200, 800 for GB300, 200 for GH200, Ascend 910B and Trainium 2, 300 for Gaudi 2, 600 for Gaudi 3, 133 for a "
    "tile of Max 1550; 100 Gb/s for others. The step is predicted with 12 and 50 GB/s a device too, and its interval holds theirs.",
    "attention": "Attention is a fused kernel (flash) from 2023 on; before, in the zero-bubble paper and where a row says so, the "
    "matrix is written.",
    "attention_sinks": "GPT-OSS's attention has learned sinks: Megatron and its forks had no fused kernel for them before 2026.06, "
    "MLPerf's runs apart.",
    "attention_kernel": "Where a row names its kernel: the software's speed of attention times the ratio of that kernel and the "
    "usual one; FlashAttention 3 and cuDNN's at least 1.6 x the device's constant on Hopper and Blackwell, FlashAttention 2 "
    "0.95 x on Hopper and 0.45 x on Blackwell.",
    "flops_convention": "Figures in FLOP/s whose convention is not stated count causal attention; in NeMo, and in Megatron before "
    "2025, all of the matrix.",
    "memory_unit": "nanotron prints the allocator's peak in GiB and calls it GB; Megatron and its forks report MiB, "
    "of which tables make GB.",
    "sft": "Full fine-tuning is predicted as pretraining: same arithmetic, same states.",
    "merged_experts": "Where a row says that what goes to experts runs beside another microbatch's computation, half of it does; "
    "and of experts in MXFP8 in Megatron Bridge from 26.06 on, whose recipes do so.",
    "tokens_dropped": "Experts with a capacity are predicted as dropless with even loads.",
    "optimizer": "Another optimizer than Adam is predicted as Adam.",
}


@dataclass
class ImputedDefaults:
    """Collects what a translation fills in; each entry is one sentence."""

    entries: list[str] = field(default_factory=list)

    def fill(self, setting: str, value: _T, default: str | None = None) -> _T:
        """Notes that the setting is not stated and takes this value, by the entry of `DEFAULTS`; returns the value."""
        self.note(f"{setting} = {_plain(value)}: {DEFAULTS[default or setting]}")
        return value

    def note(self, text: str) -> None:
        """Any other remark: a contradiction, an approximation."""
        if text not in self.entries:
            self.entries.append(text)

    def approximate(self, default: str) -> None:
        """Notes an entry of `DEFAULTS` that stands by itself."""
        self.note(DEFAULTS[default])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "name", value))
