"""A changed key of config.json gives the model that transformers makes of it, or is refused by its name.

The full set, several thousand cases, is `python -m tools.config_mutations`; here every base has some of it.
"""

import ast
import importlib
import inspect
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fourfold.huggingface import FAMILIES
from fourfold.huggingface.config_json import unread_keys
from tests.support.config_mutations import Case, cases, exact_norms, judge, write_base
from tests.support.config_values import BASES, LEFT_OUT
from tests.support.parity_reference import modeling_of

KNOWN = (
    Case("llama", ("attention_dropout",), 0.25),
    Case("llama", ("rms_norm_eps",), 0.5),
    Case("llama", ("is_causal",), False),
    Case("llama", ("num_hidden_layers",), 1),
    Case("llama", ("tie_word_embeddings",), True),
    Case("llama", ("rope_scaling",), {"type": "linear", "factor": 2.0}),
    Case("llama", ("rope_parameters", "partial_rotary_factor"), 0.5),
    Case("gpt2", ("attn_pdrop",), LEFT_OUT),
    Case("gpt2", ("num_attention_heads",), 8),
    Case("gpt2", ("n_embd",), None),
    Case("qwen2 windowed", ("max_window_layers",), 2),
    Case("qwen2 windowed", ("layer_types",), ["full_attention", "full_attention"]),
    Case("qwen2 windowed", ("layer_types",), None),
    Case("deepseek_v3", ("norm_topk_prob",), None),
    Case("deepseek_v3", ("head_dim",), 2),
    Case("qwen3_next", ("moe_intermediate_size",), None),
    Case("kimi_linear", ("linear_num_heads",), 1),
)
"""Changes that once gave another model, or a message without the key."""
REFUSED = KNOWN[0], KNOWN[2], KNOWN[3], KNOWN[4], KNOWN[5], KNOWN[7], KNOWN[14]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with exact_norms():
        yield


@pytest.mark.parametrize("base", sorted({case.base for case in KNOWN}))
def test_changes_that_once_went_unnoticed(base: str, tmp_path: Path) -> None:
    raw = write_base(base, tmp_path)
    for case in KNOWN:
        if case.base == base:
            verdict = judge(case, tmp_path, raw)
            assert verdict.holds, f"{verdict.kind}: {case.name}: {verdict.words}"
            assert verdict.kind == "refused" or case not in REFUSED, case.name


def _read_by_transformers(*modules: str) -> set[str]:
    """Names that the code reads from a configuration."""
    found = set()
    for name in modules:
        parsed = ast.parse(Path(inspect.getfile(importlib.import_module(name))).read_text())
        classes = [each.name for each in parsed.body if isinstance(each, ast.ClassDef)]
        pictures = [each for each in classes if not any(word in each for word in ("Text", "CausalLM", "Router"))]
        left_out = pictures if any("Vision" in each for each in classes) else []
        parts = [each for each in parsed.body if getattr(each, "name", "") not in left_out]
        for node in (node for part in parts for node in ast.walk(part)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("config"):
                found.add(node.attr)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
                target, key = node.args[:2]
                if ast.unparse(target).endswith("config") and isinstance(key, ast.Constant):
                    found.add(str(key.value))
    return found


METHODS = {"get_text_config", "standardize_rope_params", "validate_rope", "default_theta"}
OTHER_LAYERS = {"layer_types", "sliding_window", "attention_chunk_size", "head_dim"}
"""Read in shared code for layers of a kind that some families have not; those that have them know the keys."""
OTHER_HEADS = {"hidden_dropout"}
"""Read for models that classify."""
PICTURES = {"image_size", "layer_norm_eps", "mm_tokens_per_image", "patch_size"}
"""Read by what stands beside a decoder of text."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_code_reads_is_known(family: str) -> None:
    """Keys that no class lists among its own, such as is_causal, are found so."""
    shared = _read_by_transformers("transformers.masking_utils", "transformers.modeling_rope_utils")
    own = _read_by_transformers(modeling_of(family).__name__)
    assert {"is_causal", "rope_parameters"} <= shared
    assert len(own) >= 10
    for found, others in ((own, OTHER_HEADS | PICTURES), (shared, OTHER_LAYERS)):
        assert set(unread_keys(dict.fromkeys(found, 1), FAMILIES[family])) <= others | METHODS


def _check_family(base: str, folder: Path, share: float) -> None:
    """Judges a share of the changes of a base, drawn by its name."""
    raw = write_base(base, folder)
    all_cases, draw = cases(base, raw), random.Random(base)
    own = {case.path[0] for case in all_cases}
    assert {*raw} - {"model_type"} <= own, "each key of the family's class is changed"
    verdicts = {case.name: judge(case, folder, raw) for case in all_cases if draw.random() < share}
    assert not {name: verdict for name, verdict in verdicts.items() if not verdict.holds}
    assert sum(verdict.kind == "same" for verdict in verdicts.values()) > 20 * share
    assert json.loads((folder / "config.json").read_text()) == raw


@pytest.mark.rest
@pytest.mark.parametrize("base", BASES)
def test_keys_of_a_family(base: str, tmp_path: Path) -> None:
    _check_family(base, tmp_path, 0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("base", BASES)
def test_every_key_of_a_family(base: str, tmp_path: Path) -> None:
    _check_family(base, tmp_path, 1.0)
