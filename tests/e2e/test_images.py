"""A chat with images through llama-cpp-python's own multimodal handler: the same text with and without the draft."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.targets import make_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import convert_target, convert_vision

pytestmark = pytest.mark.native

TEMPLATE = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %} answer:"


def picture(color: tuple[int, int, int], width: int = 96, height: int = 64) -> str:
    """A PNG of one colour as a data URI."""
    rows = b"".join(b"\0" + bytes(color) * width for _ in range(height))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    chunks = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


@pytest.fixture(scope="module", params=["qwen35", "qwen3vl"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = make_target(request.param, folder / "target")
    made = {name: folder / f"{name}.gguf" for name in ("target", "mmproj", "draft")}
    convert_target(checkpoint, made["target"])
    convert_vision(checkpoint, made["mmproj"])
    make_draft(folder / "draft", DraftSpec(), seed=0)
    convert_draft(folder / "draft", made["target"], made["draft"])
    return made


@pytest.fixture(scope="module")
def pair(files: dict[str, Path]) -> Iterator[tuple[Any, Any]]:
    """Without the draft, and with it."""
    from llama_eagle import EagleLlama

    def load(draft: Path | None) -> Any:
        from llama_cpp.llama_chat_format import MTMDChatHandler

        handler = MTMDChatHandler(clip_model_path=str(files["mmproj"]), verbose=False)
        settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "verbose": False, "n_draft": 3}
        llm = EagleLlama(files["target"], draft_path=draft, chat_handler=handler, **settings)
        llm.metadata["tokenizer.chat_template"] = TEMPLATE
        return llm

    llms = (load(None), load(files["draft"]))
    yield llms
    for llm in llms:
        llm.close()


def ask(llm: Any, *colors: tuple[int, int, int], **options: Any) -> str:
    content: list[dict[str, Any]] = [{"type": "text", "text": "what is this"}]
    content += [{"type": "image_url", "image_url": {"url": picture(color)}} for color in colors]
    content.append({"type": "text", "text": "then tell"})
    messages = [{"role": "user", "content": content}]
    answer = llm.create_chat_completion(messages, **{"max_tokens": 40, "temperature": 0, **options})
    return str(answer["choices"][0]["message"]["content"])


def test_images(pair: tuple[Any, Any]) -> None:
    plain, drafting = pair
    red, blue = (255, 0, 0), (0, 0, 255)
    texts = []
    for colors in ([red], [blue], [red, blue]):
        for options in ({}, {"temperature": 1.0, "seed": 3}):
            texts.append(ask(plain, *colors, **options))
            assert ask(drafting, *colors, **options) == texts[-1]
            assert drafting.speculative_stats.n_drafted > 0  # it drafts again after the image
    assert len(set(texts[::2])) == 3  # the images are seen


def test_ends_with_the_context_where_plain_decoding_does(pair: tuple[Any, Any]) -> None:
    """With M-RoPE an image takes more room in the context than positions."""
    texts = [ask(llm, (255, 0, 0), (0, 0, 255), max_tokens=None) for llm in pair]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 300
    short = [ask(llm, (255, 0, 0), max_tokens=5) for llm in pair]
    assert short[0] == short[1]  # they are usable all the same


def test_text_after_images(pair: tuple[Any, Any]) -> None:
    plain, drafting = pair
    ask(drafting, (255, 0, 0))
    prompt = plain.tokenize(b"what is this then")
    expected = plain.create_completion(prompt, max_tokens=30, seed=1)["choices"]
    assert drafting.create_completion(prompt, max_tokens=30, seed=1)["choices"] == expected
