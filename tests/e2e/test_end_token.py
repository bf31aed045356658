"""A vocabulary that appends its end token to every text: prompts are continued, so they have none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from fixtures.command import llama_eagle
from fixtures.serving import Served, serve
from fixtures.targets import make_target
from fixtures.tiny_gguf import END, write_target
from llama_eagle import EagleLlama
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer

pytestmark = pytest.mark.native
MESSAGES = [{"role": "user", "content": "Hi, how are you?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose post-processor appends <|im_end|>."""
    folder = tmp_path_factory.mktemp("end")
    checkpoint = make_target("qwen3", folder / "hf", seed=5, dtype="float32")
    data = json.loads((checkpoint / "tokenizer.json").read_text())
    end = next(token["id"] for token in data["added_tokens"] if token["content"] == "<|im_end|>")
    parts = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}]
    known = {"<|im_end|>": {"id": "<|im_end|>", "ids": [end], "tokens": ["<|im_end|>"]}}
    data["post_processor"] = {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": known}
    (checkpoint / "tokenizer.json").write_text(json.dumps(data))
    convert_target(checkpoint, folder / "target.gguf", TargetOptions(outtype="f16"))
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder / "hf")


@pytest.fixture(scope="module")
def n_rendered(reference: Any) -> int:
    """The number of a chat's tokens by transformers, which puts none around a rendered template."""
    text = reference.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    return len(reference(text, add_special_tokens=False)["input_ids"])


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serve("-m", folder / "target.gguf", "-c", 512, "-t", 1, "--parallel", 1) as running:
        yield running


def test_the_reference_appends_it(folder: Path, reference: Any) -> None:
    with Model(folder / "target.gguf", LoadOptions(vocab_only=True)) as model:
        tokenizer, ids = Tokenizer(model), reference("Hi")["input_ids"]
        assert ids[-1] == reference.convert_tokens_to_ids("<|im_end|>")
        assert tokenizer.encode("Hi", add_eos=True) == ids
        assert tokenizer.encode("Hi") == tokenizer.encode_piece("Hi", True) == ids[:-1]
        assert tokenizer.encode("<|im_end|>") == ids[-1:], "the text's own token stays"


def test_served_chats(server: Served, n_rendered: int) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "temperature": 0}
    for path in ("/v1/chat/completions", "/v1/messages"):
        status, answer = server.post(path, body)
        assert status == 200, answer
        usage = answer["usage"]
        n_prompt = usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        assert n_prompt == n_rendered
    assert server.post("/v1/messages/count_tokens", body)[1]["input_tokens"] == n_rendered


def test_embeddings_keep_it(folder: Path, reference: Any) -> None:
    options = ["-c", 512, "-t", 1, "--parallel", 1, "--", "--embeddings", "--pooling", "last"]
    with serve("-m", folder / "target.gguf", *options) as running:
        answer = running.post("/v1/embeddings", {"input": "Hi"})[1]
    assert answer["usage"]["prompt_tokens"] == len(reference("Hi")["input_ids"])


def test_an_override_of_the_user_wins(folder: Path, n_rendered: int) -> None:
    options = ["-c", 512, "-t", 1, "--parallel", 1, "--", "--override-kv", "tokenizer.ggml.add_eos_token=bool:true"]
    with serve("-m", folder / "target.gguf", *options) as running:
        answer = running.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})[1]
    assert answer["usage"]["prompt_tokens"] == n_rendered + 1


def test_answered_and_generated_texts_are_equal(folder: Path) -> None:
    (folder / "prompts.txt").write_text(MESSAGES[0]["content"])
    options = ("-t", 1, "-n", 12, "--temp", 0)
    done = llama_eagle(
        "answer", folder / "prompts.txt", "-m", folder / "target.gguf", "-o", folder / "a.jsonl", *options
    )
    assert done.code == 0, done.stderr
    alone = llama_eagle("generate", "-m", folder / "target.gguf", "-p", MESSAGES[0]["content"], *options, "--json")
    assert json.loads((folder / "a.jsonl").read_text())["messages"][-1]["content"] == alone.json["text"]


@pytest.mark.parametrize("chat_format", [None, "chatml", "chatml-function-calling"])
def test_chats_of_an_instance(chat_format: str | None, folder: Path, reference: Any) -> None:
    end = reference.convert_tokens_to_ids("<|im_end|>")
    with EagleLlama(str(folder / "target.gguf"), n_ctx=512, n_threads=1, chat_format=chat_format) as llm:
        for answer in (llm.create_chat_completion(MESSAGES, max_tokens=1, temperature=0), llm("Hi", max_tokens=1)):
            n_prompt = answer["usage"]["prompt_tokens"]
            assert llm.input_ids[:n_prompt].tolist()[-1] != end
        assert n_prompt == len(reference("Hi")["input_ids"]) - 1


def test_a_format_that_ends_with_the_end_token(tmp_path: Path) -> None:
    """For a vocabulary that appends none, it is part of the prompt."""
    from llama_cpp import llama_chat_format

    formatted = llama_chat_format.ChatFormatterResponse(prompt="abc<|im_end|>")
    handler = llama_chat_format.chat_formatter_to_chat_completion_handler(lambda **_: formatted)
    target = write_target(tmp_path / "target.gguf")
    with EagleLlama(target, draft="none", n_ctx=256, n_threads=1, chat_format="ends", verbose=False) as llm:
        llm._chat_handlers["ends"] = handler
        answer: Any = llm.create_chat_completion([{"role": "user", "content": "abc"}], max_tokens=1)
        assert llm.input_ids[: answer["usage"]["prompt_tokens"]].tolist()[-1] == END
