"""A clone of a sampler continues as its original, because a rollback of a text returns to one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_gguf import N_VOCAB, write_target
from fixtures.upstream import source_folder
from llama_eagle.native import calls
from llama_eagle.sessions.models import LoadOptions, Model

pytestmark = pytest.mark.native

SEED = 7
STEPS = 40
GRAMMAR = b'root ::= ([a-z] | " ")*'
SAMPLERS = {
    "greedy": ("greedy",),
    "dist": ("dist", SEED),
    "top_k": ("top_k", 20),
    "top_p": ("top_p", 0.9, 1),
    "min_p": ("min_p", 0.05, 1),
    "typical": ("typical", 0.9, 1),
    "temp": ("temp", 0.7),
    "temp_ext": ("temp_ext", 0.7, 0.3, 1.0),
    "xtc": ("xtc", 0.5, 0.05, 1, SEED),
    "top_n_sigma": ("top_n_sigma", 1.5),
    "mirostat": ("mirostat", N_VOCAB, SEED, 5.0, 0.1, 100),
    "mirostat_v2": ("mirostat_v2", SEED, 5.0, 0.1),
    "penalties": ("penalties", N_VOCAB, 16, 1.2, 0.1, 0.1),
}


@pytest.fixture(scope="module")
def api() -> Any:
    calls.library()
    import llama_cpp

    return llama_cpp


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Model(write_target(tmp_path_factory.mktemp("model") / "target.gguf"), LoadOptions(n_gpu_layers=0)) as model:
        yield model.vocab


def made(api: Any, name: str, vocab: Any) -> Any:
    library = calls.library()
    if name == "adaptive_p":
        library.llama_sampler_init_adaptive_p.restype = api.llama_sampler_p_ctypes
        library.llama_sampler_init_adaptive_p.argtypes = [ctypes.c_float, ctypes.c_float, ctypes.c_uint32]
        return library.llama_sampler_init_adaptive_p(0.3, 0.9, SEED)
    if name == "grammar":
        return api.llama_sampler_init_grammar(vocab, GRAMMAR, b"root")
    if name == "dry":
        breakers = (ctypes.c_char_p * 1)(b"\n")
        return api.llama_sampler_init_dry(vocab, 0.8, 1.75, 2, 64, breakers, 1)
    kind, *arguments = SAMPLERS[name]
    return getattr(api, f"llama_sampler_init_{kind}")(*arguments)


def step(api: Any, sampler: Any, logits: np.ndarray, *, accept: bool = True) -> list[tuple[int, float, float]]:
    """Apply a sampler and let it accept a token. Returns what it left, the token first."""
    data = (api.llama_token_data * len(logits))(
        *(api.llama_token_data(i, float(logit), 0.0) for i, logit in enumerate(logits))
    )
    found = api.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    api.llama_sampler_apply(sampler, ctypes.byref(found))
    left = [(found.data[i].id, found.data[i].logit, found.data[i].p) for i in range(found.size)]
    chosen = left[found.selected] if found.selected >= 0 else max(left, key=lambda each: each[1])
    if accept:
        api.llama_sampler_accept(sampler, chosen[0])
    return [chosen, *left]


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize("name", [*SAMPLERS, "adaptive_p", "grammar", "dry"])
def test_a_clone_continues(api: Any, vocab: Any, name: str, is_pending: bool) -> None:
    """is_pending: cloned between the choice of a token and its acceptance."""
    random = np.random.default_rng(SEED)
    original = made(api, name, vocab)
    for _ in range(STEPS):
        step(api, original, random.normal(0, 3, N_VOCAB))
    first = step(api, original, random.normal(0, 3, N_VOCAB), accept=not is_pending)
    clone = api.llama_sampler_clone(original)
    for each in (original, clone) if is_pending else ():
        api.llama_sampler_accept(each, first[0][0])
    for _ in range(STEPS):
        logits = random.normal(0, 3, N_VOCAB)
        assert step(api, clone, logits) == step(api, original, logits)
    for each in (original, clone):
        api.llama_sampler_free(each)


def test_each_sampler_is_tested() -> None:
    """llama.cpp's header names no other ones with a state, apart from infill's and the bias's."""
    header = (source_folder() / "include/llama.h").read_text()
    named = {line.split("llama_sampler_init_")[1].split("(")[0].strip() for line in header.splitlines()
             if "LLAMA_API" in line and "llama_sampler_init_" in line}  # fmt: skip
    tested = {kind for kind, *_ in SAMPLERS.values()} | {"adaptive_p", "grammar", "dry"}
    assert named - tested <= {"grammar_lazy", "grammar_lazy_patterns", "infill", "logit_bias"}
