"""LangChain's and LlamaIndex's adapters, which construct `llama_cpp.Llama` themselves, with a draft behind them;
instructor and outlines, which are given one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import llama_eagle  # before llama_cpp: it decides which library that loads
import pytest
from fixtures.command import PYTHON
from fixtures.tiny_gguf import write_draft, write_target
from llama_eagle.native.build import library_folder
from pydantic import BaseModel

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
COMMON: dict[str, Any] = {"n_ctx": 512, "verbose": False, "n_threads": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "model_path": str(write_target(folder / "target.gguf")),
        "draft_path": str(write_draft(folder / "draft.gguf")),
    }


def test_patch_and_undo(pair: dict[str, str]) -> None:
    import llama_cpp
    from llama_eagle.integrations import patch_llama_cpp

    original = llama_cpp.Llama
    with patch_llama_cpp(draft_path=pair["draft_path"], n_draft=2):
        llm: Any = llama_cpp.Llama(pair["model_path"], f16_kv=True, **COMMON)
        assert isinstance(llm, llama_eagle.EagleLlama)
        assert isinstance(llm, original)
    assert llama_cpp.Llama is original
    assert llm.create_completion("abc", max_tokens=23, temperature=0)["choices"][0]["text"] == ALPHABET[3:]
    assert llm.speculative_stats.n_accepted > 0


def test_llama_cpp_may_come_first_with_our_library_only(pair: dict[str, str], tmp_path: Path) -> None:
    """With another one there is one line that says what to swap."""
    ours, another = library_folder(), tmp_path / "lib"
    shutil.copytree(ours, another)
    code = f"import llama_cpp; from llama_eagle import EagleLlama; EagleLlama({pair['model_path']!r}, n_ctx=64)"
    for folder in (ours, another):
        environment = {**os.environ, "LLAMA_CPP_LIB_PATH": str(folder)}
        done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (folder == ours), done
    assert f"loaded {another}; llama_eagle needs {ours}. Import llama_eagle first" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("options", [{"n_draft": 20}, {"n_draft_max": 40}, {"n_draft": "auto"}])
def test_small_batches_are_enlarged(pair: dict[str, str], options: dict[str, Any]) -> None:
    """LangChain's default is 8."""
    import llama_cpp
    from llama_eagle.integrations import patch_llama_cpp

    with patch_llama_cpp(draft_path=pair["draft_path"], **options):
        llm: Any = llama_cpp.Llama(pair["model_path"], n_batch=8, **COMMON)
    assert llm.n_batch == llm._n_draft_max + 2
    assert llm.create_completion("abc", max_tokens=23, temperature=0)["choices"][0]["text"] == ALPHABET[3:]


@pytest.mark.slow  # installs of LangChain and LlamaIndex: the dependency group "integrations"
def test_langchain(pair: dict[str, str]) -> None:
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.llms import LlamaCpp
    from llama_eagle.integrations import patch_llama_cpp

    with patch_llama_cpp(draft_path=pair["draft_path"], n_draft=2):
        chat = ChatLlamaCpp(model_path=pair["model_path"], temperature=0, max_tokens=26, **COMMON)
        plain = LlamaCpp(model_path=pair["model_path"], temperature=0, max_tokens=23, **COMMON)
    assert chat.invoke("hello").content == ALPHABET
    assert "".join(str(part.content) for part in chat.stream("hello")) == ALPHABET
    assert plain.invoke("abc") == ALPHABET[3:]
    assert chat.client.speculative_stats.n_accepted > 0
    assert plain.client.speculative_stats.n_accepted > 0


@pytest.mark.slow
def test_llama_index(pair: dict[str, str]) -> None:
    from llama_eagle.integrations import patch_llama_cpp
    from llama_index.llms.llama_cpp import LlamaCPP

    with patch_llama_cpp(draft_path=pair["draft_path"], n_draft=2):
        llm = LlamaCPP(
            model_path=pair["model_path"], temperature=0, max_new_tokens=23, context_window=512, verbose=False,
            model_kwargs={"n_threads": 1}, completion_to_prompt=lambda text: text,
        )  # fmt: skip
    assert llm.complete("abc").text == ALPHABET[3:]
    assert "".join(part.delta or "" for part in llm.stream_complete("abc")) == ALPHABET[3:]
    assert llm._model.speculative_stats.n_accepted > 0


class Answer(BaseModel):
    letters: Literal["abcdefgh"]
    count: Literal[8]


@pytest.mark.slow
def test_instructor(pair: dict[str, str]) -> None:
    import instructor

    with llama_eagle.EagleLlama(pair["model_path"], draft=pair["draft_path"], **COMMON) as llm:
        create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.JSON_SCHEMA)
        question = [{"role": "user", "content": "hello"}]
        answer = create(messages=question, response_model=Answer, temperature=0, max_tokens=100)
        assert answer.model_dump() == {"letters": "abcdefgh", "count": 8}
        assert llm.speculative_stats.n_emitted > 0


@pytest.mark.slow
def test_outlines(pair: dict[str, str]) -> None:
    """Its automaton is a logits processor with a memory: it is asked once for each token, whatever was drafted."""
    import outlines

    texts = []
    for draft in (pair["draft_path"], None):
        with llama_eagle.EagleLlama(pair["model_path"], draft=draft, **COMMON) as llm:
            model = outlines.from_llamacpp(llm)
            assert model("hello", Literal["abcdefgh", "zzz"], max_tokens=50, temperature=0) == "abcdefgh"
            assert "".join(model.stream("hello", Literal["abcdefgh"], max_tokens=50, temperature=0)) == "abcdefgh"
            texts.append(model("hello", outlines.regex("[a-m]{40}[0-9]{3}"), max_tokens=60, temperature=0))
            assert draft is None or llm.speculative_stats.n_accepted > 0
    assert texts[0] == texts[1]
    assert re.fullmatch("[a-m]{40}[0-9]{3}", texts[0])
