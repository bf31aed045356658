"""The list of targets that publish their layer inputs, held against the patched source that was built."""

from __future__ import annotations

import re

import pytest
from fixtures.upstream import source_folder
from llama_eagle.gguf.architectures import FEATURE_TARGETS

pytestmark = pytest.mark.native


def test_the_list_is_that_of_the_build() -> None:
    source = source_folder() / "src"
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+), +\"([\w.-]+)\"", (source / "llama-arch.cpp").read_text()))
    built = re.findall(
        r"((?:case LLM_ARCH_\w+:\s*)+)return new llama_model_(\w+)\(", (source / "llama-model.cpp").read_text()
    )
    classes = {names[arch]: model for cases, model in built for arch in re.findall(r"case (LLM_ARCH_\w+):", cases)}
    graphs = dict(  # models that use another's graph
        re.findall(
            r"struct llama_model_(\w+)[^{]*\{(?:(?!\nstruct ).)*?using graph = llama_model_(\w+)::graph",
            (source / "models/models.h").read_text(),
            re.DOTALL,
        )
    )
    publishing = {
        match
        for path in (source / "models").glob("*.cpp")
        if "t_layer_inp[il] =" in (text := path.read_text())
        for match in re.findall(r"llama_model_(\w+)::graph", text)
    }
    found = {arch for arch, model in classes.items() if graphs.get(model, model) in publishing}
    # The first generates nothing, the second has four streams, the state of the third cannot be rolled back.
    assert found - {"llama-embed", "qwen4exp", "minimax-01"} == FEATURE_TARGETS
