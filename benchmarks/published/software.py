"""The software that ran a published row: a framework and its year, read from what the row says of it and of its source."""

import re
from dataclasses import dataclass, replace

from assertions import asserted
from profiles import profile_of

_YEARS = re.compile(r"(?<!\d)(20[12]\d)(?:0[1-9]|1[0-2])?(?!\d)")
_PAPER = re.compile(r"arxiv\D{0,20}?(\d\d)(?:0[1-9]|1[0-2])\.\d{4,5}", re.I)
_CONTAINER = re.compile(r'(?:"|nemo[: ](?:framework |container )?)(2\d)\.(0[1-9]|1[0-2])(?!\d)', re.I)
SHARDED_SINCE = 2023
"""Scripts for Megatron turn its distributed optimizer on since this year."""
_RELEASES = {"nemo": ((2026, 6),)}
"""Releases (year and month) within a year that changed how a framework runs: rows that state theirs are told apart."""


ON_GPU = "maxtext-gpu"
"""MaxText where its collectives are a library's of GPUs, not XLA's own over the links of a TPU."""


@dataclass(frozen=True)
class Trainer:
    """`name` is framework-year, or framework-year.month from a release on that changed much, with the platform between them
    where that is not CUDA: its kernels and collectives are others. `is_megatron_family`: of the Megatron family, whose habits
    (padding, sequence parallelism) they share."""

    framework: str
    year: int
    is_megatron_family: bool = False
    sharded_optimizer: bool = False
    """The framework's recipes shard the optimizer's state by default."""
    release: int = 0
    platform: str = ""

    @property
    def is_xla(self) -> bool:
        """Whether XLA makes its kernels."""
        return self.framework in ("maxtext", ON_GPU, "paxml")

    @property
    def is_torch_fsdp(self) -> bool:
        """Whether it is torch's own FSDP."""
        return self.framework in ("torchtitan", "fsdp", "pytorch")

    @property
    def name(self) -> str:
        month = f".{self.release:02}" if self.release else ""
        software = f"{self.framework}-{self.platform}" if self.platform else self.framework
        return f"{software}-{self.year}{month}" if self.year else software

    @property
    def profile(self) -> str:
        """The software profile that predictions take."""
        return profile_of(self.framework, self.platform, self.year)


_NEMO = r"(?<!bio)nemo(?!tron)"
_TRAINERS: tuple[tuple[str, Trainer], ...] = (
    ("neuron", Trainer("neuronx", 2024, True, True)),
    ("mindformers", Trainer("mindformers", 2024)),
    ("lightning-ai mingpt", Trainer("lightning", 2022)),
    ("lightning-thunder", Trainer("thunder", 2024)),
    ("kempnerforge", Trainer("kempnerforge", 2026)),
    ("halo, throughput", Trainer("halo", 2026)),
    ("prime-rl", Trainer("prime-rl", 2026)),
    (r"veomni(?! authors)", Trainer("veomni", 2025)),
    ("pai-megatron", Trainer("megatron-pai", 2025, True, True)),
    ("nanotron", Trainer("nanotron", 2025)),
    ("picotron", Trainer("picotron", 2024)),
    ("llm-foundry", Trainer("llm-foundry", 2023)),
    ("llm foundry", Trainer("llm-foundry", 2023)),
    ("mosaicgpt", Trainer("llm-foundry", 2023)),
    ("modalities", Trainer("modalities", 2024)),
    ("paddle", Trainer("paddlenlp", 2023)),
    ("internevo", Trainer("internevo", 2024)),
    ("vtrain", Trainer("vtrain-megatron-deepspeed", 2022, True)),
    ("maxtext", Trainer("maxtext", 2024)),
    ("paxml", Trainer("paxml", 2024)),
    ("megascale", Trainer("megatron-megascale", 2024, True, True)),
    ("automodel", Trainer("automodel", 2025)),
    ("megatron[- ]bridge", Trainer("nemo", 2026, True, True)),
    ("dgxc-benchmarking@35a9aec", Trainer("nemo", 2024, True, True)),
    ("dgxc-benchmarking", Trainer("nemo", 2025, True, True)),
    ("simumax", Trainer("megatron-simumax", 2025, True, True)),
    ("moe parallel folding", Trainer("megatron", 2025, True, True)),
    ("zero bubble", Trainer("megatron-zero-bubble", 2023, True)),
    ("zero-bubble", Trainer("megatron-zero-bubble", 2023, True)),
    ("functional_tests", Trainer("megatron-tests", 2025, True)),
    ("zero-3 vs ptd-p", Trainer("megatron", 2021, True)),
    ("mt-nlg|megatron-turing", Trainer("megatron-deepspeed", 2021, True)),
    ("narayanan", Trainer("megatron", 2021, True)),
    ("korthikanti", Trainer("megatron", 2022, True)),
    (r"tables\.tex", Trainer("megatron", 2020, True)),
    ("model_table", Trainer("megatron", 2024, True, True)),
    ("llama 3 paper", Trainer("meta", 2024)),
    ("torchtitan", Trainer("torchtitan", 2025)),
    ("olmo", Trainer("olmo-core", 2025)),
    ("mindspeed", Trainer("megatron-mindspeed", 2025, True)),
    (_NEMO, Trainer("nemo", 2025, True, True)),
    ("gpt-neox", Trainer("megatron-neox", 2022, True)),
    ("megatron-deepspeed|deepspeed-megatron|bigscience", Trainer("megatron-deepspeed", 2022, True)),
    ("megatron", Trainer("megatron", 2025, True)),
    ("colossal", Trainer("colossal-ai", 2023)),
    (r"llm\.q", Trainer("llmq", 2025)),
    (r"llm\.c", Trainer("llm.c", 2024)),
    ("nanogpt", Trainer("nanogpt", 2023)),
    ("xtuner", Trainer("xtuner", 2024)),
    ("oneflow-gpt", Trainer("oneflow", 2021)),
    ("levanter", Trainer("levanter", 2024)),
    (r"\balpa\b", Trainer("alpa", 2022)),
    ("sagemaker", Trainer("sagemaker", 2022)),
    ("deepspeed", Trainer("deepspeed", 2023)),
    ("ds3lab", Trainer("ds3lab", 2022)),
    ("fsdp", Trainer("fsdp", 2024)),
    ("deepseek", Trainer("deepseek", 2024)),
)
"""The first pattern found in the source wins, trainers before makers of models that others train too; the year is the one usual for
that source, unless the source states one."""


_LIBRARIES: tuple[tuple[str, Trainer], ...] = (
    (r"\bjax\b|\bflax\b", Trainer("maxtext", 2024)),
    ("pytorch", Trainer("pytorch", 2024)),
)
"""Libraries that trainers are made of: a framework that is called so may still be one that its source names."""
_ON_TORCH: tuple[tuple[str, Trainer], ...] = ((r"hugging ?face|\btransformers\b|\bhf\b", Trainer("pytorch", 2024)),)
"""Frameworks that run on torch's own modules: the source may be a page that names others."""
_MAKERS: tuple[tuple[str, Trainer], ...] = (
    ("nemotron", Trainer("megatron", 2024, True)),
    ("glm-130b|bloom", Trainer("megatron-deepspeed", 2022, True)),
    ("smollm", Trainer("nanotron", 2025)),
    ("touvron", Trainer("meta", 2023)),
)
"""Models of which it is known what trained them, where a row does not say."""
_DATED_BY_PAPER = (
    "torchtitan",
    _NEMO,
    "megatron-deepspeed|deepspeed-megatron|bigscience",
    "megatron",
    "colossal",
    "gpt-neox",
    "deepspeed",
    "fsdp",
    "pytorch",
    "nemotron",
)
"""Patterns of trainers that have run in many papers: the year is the paper's, where nothing states another."""


def trainer_of(source: str, notes: str = "", framework: str = "") -> Trainer:
    """The software of a row: of what it calls its framework, else of its source, else of its notes, else of the model's makers;
    `unknown` where none is known. A name that a framework or notes deny counts for nothing."""
    everything, remarks = (*_TRAINERS, *_LIBRARIES), f"{notes}; {framework}"
    for says, text, known in (
        (asserted, framework, (*_TRAINERS, *_ON_TORCH)),
        (_mentions, source, everything),
        (asserted, remarks, everything),
        (_mentions, source, _MAKERS),
    ):
        for word, trainer in known:
            if says(text, word):
                year = _paper_year(source) if word in _DATED_BY_PAPER else None
                dated = replace(trainer, year=year) if year else trainer
                return _with_year(_variant(dated, notes), source, framework)
    return _with_year(Trainer("unknown", _paper_year(source) or 0), source, framework)


LARGE = 64
"""Devices from which on tensor parallelism is taken for the work of one of Megatron's forks."""
UNNAMED_YEAR = 2024


def usual_trainer(unknown: Trainer, device: str, num_devices: int, tp: int, pp: int, fsdp: bool) -> Trainer:
    """The software of a trainer that nobody names, by what it does: XLA's on a TPU; Megatron's forks with a pipeline, or tensor
    parallelism on many devices, and no FSDP; else as it is."""
    year = unknown.year or UNNAMED_YEAR
    if device.startswith("tpu"):
        return Trainer("maxtext", year)
    if (pp > 1 or (tp > 1 and num_devices >= LARGE)) and not fsdp:
        return on_platform(Trainer("megatron", year, True, sharded_optimizer=year >= SHARDED_SINCE), device)
    return unknown


def on_platform(trainer: Trainer, device: str) -> Trainer:
    """Megatron for ROCm is a fork with kernels of its own; torch's collectives on Intel's devices are another library."""
    rocm = device.startswith("mi") and trainer.is_megatron_family
    return replace(trainer, platform="rocm" if rocm else "xpu" if device == "max-1550" else "")


def _mentions(text: str, pattern: str) -> bool:
    return bool(re.search(pattern, text, re.I))


def _paper_year(source: str) -> int | None:
    paper = _PAPER.search(source)
    return 2000 + int(paper[1]) if paper else None


def _variant(trainer: Trainer, notes: str) -> Trainer:
    if trainer.framework == "megatron" and "deepspeed zero-3" in notes.lower():
        return Trainer("deepspeed", trainer.year)
    return trainer


def _with_year(trainer: Trainer, source: str, framework: str) -> Trainer:
    years = [_years(text) for text in (framework, source)]
    container = _CONTAINER.search(framework) or (None if len(years[0]) == 1 else _CONTAINER.search(source))
    year, month = next((min(stated) for stated in years if len(stated) == 1), trainer.year), 0
    if container:
        year, month = 2000 + int(container[1]), int(container[2])
    release = max((m for y, m in _RELEASES.get(trainer.framework, ()) if y == year and m <= month), default=0)
    sharded = trainer.sharded_optimizer or (_is_megatron(trainer) and year >= SHARDED_SINCE)
    return replace(trainer, year=year, release=release, sharded_optimizer=sharded)


def _years(text: str) -> set[int]:
    return {int(year) for year in _YEARS.findall(_PAPER.sub("", text))}


def _is_megatron(trainer: Trainer) -> bool:
    """Whether it has Megatron's distributed optimizer."""
    return trainer.framework.startswith("megatron") and "deepspeed" not in trainer.framework
