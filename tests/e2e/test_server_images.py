"""`serve` with images: the draft of a slot reads their rows, the text is that of plain decoding, nothing is read twice.

What the drafts are is compared with a session's in tests/parity/test_image_sets.py.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import Served, serve
from fixtures.streams import whole
from fixtures.vision_files import VisionFiles, make_vision_files, png, png_head, user

pytestmark = pytest.mark.native

Messages = list[dict[str, Any]]
KINDS = ("qwen3vl", "qwen35-mtp")
OPTIONS = ("-c", 1024, "-t", 1, "--parallel", 2, "--n-draft", 3)


@dataclass(frozen=True)
class Servers:
    """The same target without a draft and with one."""

    files: VisionFiles
    slots: Path
    plain: Served
    drafting: Served

    def same(self, messages: Messages, **options: Any) -> dict[str, Any]:
        """The answer that both give, as the one with the draft says it."""
        expected, found = (answer(server, messages, **options) for server in (self.plain, self.drafting))
        assert said(found) == said(expected)
        return found


def answer(server: Served, messages: Messages, **options: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "id_slot": 0, **options}
    status, found = server.post("/v1/chat/completions", body)
    assert status == 200, found
    return dict(found)


def said(found: dict[str, Any]) -> str:
    return str(found["choices"][0]["message"]["content"])


def then(messages: Messages, found: dict[str, Any], *parts: str | bytes) -> Messages:
    """The conversation with its answer and a further question."""
    return [*messages, {"role": "assistant", "content": said(found)}, user(*parts)]


@pytest.fixture(scope="module", params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp(request.param)
    files = make_vision_files(request.param.removesuffix("-mtp"), folder, mtp=request.param.endswith("-mtp"))
    slots = folder / "slots"
    slots.mkdir()
    given = ("-m", files.target, "--mmproj", files.mmproj, *OPTIONS)
    with (
        serve(*given, "-d", "none") as plain,
        serve(*given, "-d", files.draft, "--", "--slot-save-path", slots) as drafting,
    ):
        yield Servers(files, slots, plain, drafting)


def test_texts_are_those_of_plain_decoding(servers: Servers) -> None:
    """Images anywhere in several turns, repeated and edited, streams that are left, greedy and seeded."""
    rng, n_drafted = random.Random(1), 0
    for _ in range(4):
        messages: Messages = []
        for _ in range(3):
            parts: list[str | bytes] = [rng.choice(["what is ", "tell me ", "count "])]
            for _ in range(rng.choice([0, 1, 1, 2])):
                size = {"width": 32 * rng.randint(1, 4), "height": 32 * rng.randint(1, 4)}
                parts.insert(rng.randrange(len(parts) + 1), png(rng.randrange(5), **size))
            messages.append(user(*parts))
            options: dict[str, Any] = {} if rng.random() < 0.5 else {"temperature": 1.0, "seed": 3}
            found = servers.same(messages, **options)
            n_drafted += found["timings"]["draft_n"]
            event = rng.random()
            if event < 0.3:
                servers.drafting.hang_up("and now", 40, 200)
                servers.same(messages, **options)
            elif event < 0.6:
                messages[0] = user("once more ", png(rng.randrange(5)))
                found = servers.same(messages)
            messages.append({"role": "assistant", "content": said(found)})
    assert n_drafted > 100


def test_a_second_turn_reads_only_what_is_new(servers: Servers) -> None:
    first = [user("look ", png(11, 128, 128), " and ", png(12, 128, 128), " here, at all of it, and say what it is")]
    n_first = servers.same(first)["timings"]["prompt_n"]
    found = servers.same(first)
    second = servers.same(then(first, found, "and now"))["timings"]
    assert n_first > 32 and second["cache_n"] > 32
    assert second["prompt_n"] < n_first


def test_two_answers_to_one_question(servers: Servers) -> None:
    """Both slots draft from what the first one has read."""
    messages = [user("what is ", png(2), " in this picture")]
    texts, n_drafted = set(), []
    for n in (1, 2):
        before = servers.drafting.metric("spec_decode_num_draft_tokens_total")
        found = answer(servers.drafting, messages, n=n)
        texts |= {choice["message"]["content"] for choice in found["choices"]}
        n_drafted.append(servers.drafting.metric("spec_decode_num_draft_tokens_total") - before)
    assert len(texts) == 1 and len(found["choices"]) == 2
    assert n_drafted[1] == 2 * n_drafted[0] > 0


def test_a_saved_slot_keeps_images_and_its_draft(servers: Servers) -> None:
    server = servers.drafting
    messages = [user("see ", png(5), " now")]
    found = answer(server, messages)
    assert server.post("/slots/0?action=save", {"filename": "a.bin"})[0] == 200
    assert (servers.slots / "a.bin.draft").stat().st_size > 1000
    more = then(messages, found, "and then")
    expected = answer(server, more)
    answer(server, [user("something else")], id_slot=1)
    assert server.post("/slots/1?action=restore", {"filename": "a.bin"})[0] == 200
    restored = answer(server, more, id_slot=1)
    assert said(restored) == said(expected)
    assert restored["timings"]["draft_n"] == expected["timings"]["draft_n"]


BAD = {
    "no picture": b"this is no picture",
    "a truncated PNG": png(1)[: len(png(1)) // 2],
    "12,000 x 10,000 pixels": png_head(12000, 10000),
    "30,000 x 30,000 pixels": png_head(30000, 30000),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_the_clients_fault(servers: Servers, name: str) -> None:
    messages = [user("what is ", png(1))]
    expected = said(answer(servers.drafting, messages))
    status, found = servers.drafting.post("/v1/chat/completions", {"messages": [user("a ", BAD[name])]})
    assert status == 400 and "100 million pixels" in found["error"]["message"]
    assert said(answer(servers.drafting, messages)) == expected


def test_tools_may_answer_with_pictures(servers: Servers) -> None:
    """The same prompt and text on every API; another picture is another text."""
    texts = []
    for seed in (0, 1):
        data = base64.b64encode(png(seed, width=64, height=64)).decode()
        url = f"data:image/png;base64,{data}"
        source = {"type": "base64", "media_type": "image/png", "data": data}
        use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]}
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}
        picture = {"type": "image_url", "image_url": {"url": url}}
        asked = {"role": "user", "content": "look"}
        chat: Messages = [asked, {"role": "assistant", "content": None, "tool_calls": [call]}]
        chat.append({"role": "tool", "tool_call_id": "c", "content": [picture]})
        items = [asked, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, output]
        blocks = [asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        texts.append(said(answer(servers.plain, chat)))
        body = {"messages": blocks, "max_tokens": 12, "temperature": 0}
        assert whole(servers.plain, "/v1/messages", body) == texts[-1]
        body = {"input": items, "max_output_tokens": 12, "temperature": 0}
        assert whole(servers.plain, "/v1/responses", body) == texts[-1]
    assert texts[0] != texts[1]


def test_what_does_not_fit_is_refused_before_it_is_read(servers: Servers) -> None:
    n_before = servers.drafting.metric("prompt_tokens_total")
    body = {"messages": [user("a ", png(2, 1024, 1024), png(3, 1024, 1024))], "max_tokens": 4}
    status, found = servers.drafting.post("/v1/chat/completions", body)
    assert status == 400 and "exceeds the available context size" in found["error"]["message"]
    assert servers.drafting.metric("prompt_tokens_total") == n_before > 0


def test_encoders_of_others_are_refused(servers: Servers, tmp_path: Path) -> None:
    other = make_vision_files("qwen35" if "qwen3vl" in str(servers.files.target) else "qwen3vl", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"models": [{"model": str(servers.files.target), "mmproj_path": str(other.mmproj)}]}))
    for options in (("-m", servers.files.target, "--mmproj", other.mmproj), ("--config", config)):
        assert_one_line_error(llama_eagle("serve", *options), 3, "belongs to another model")
