"""A chat template that exceeds a limit when a message asks for it: that request ends, the server goes on.

`serve` tries a template with one message, and this one is fine then. `test_template_limits.py` has the limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

NESTED = "{%- set n = namespace(t=[]) %}{%- for i in range(1001) %}{%- set n.t = [n.t] %}{%- endfor %}"
TEMPLATE = (
    "{%- set asked = messages[-1].content %}"
    + "{%- if asked == 'nested' %}"
    + NESTED
    + "{{ n.t | tojson }}{%- endif %}"
    + "{%- if asked == 'large' %}{{ 'a' * 2000000000 }}{%- endif %}"
    + "{%- if asked == 'endless' %}{%- for i in range(99999) %}{%- for j in range(99999) %}{%- endfor %}{%- endfor %}"
    + "{%- endif %}{%- for message in messages %}{{ message.content }}{%- endfor %}"
)
REASONS = {"nested": "nested too deeply", "large": "too much memory"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("model")
    write_target(folder / "target.gguf")
    (folder / "template.jinja").write_text(TEMPLATE)
    given = ("-m", folder / "target.gguf", "-d", "none", "-c", 2048, "-t", 1, "--parallel", 2)
    with serve(*given, "--", "--chat-template-file", folder / "template.jinja") as running:
        yield running


def chat(server: Served, *contents: str) -> tuple[int, str]:
    messages = [{"role": "user", "content": content} for content in contents]
    status, answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2, "temperature": 0})
    return status, str(answer)


@pytest.mark.parametrize("asked", REASONS)
def test_one_that_exceeds_a_limit(server: Served, asked: str) -> None:
    status, answer = chat(server, asked)
    assert status == 400 and REASONS[asked] in answer
    assert server.process.poll() is None
    assert chat(server, "abc")[0] == 200


def test_an_endless_template_is_ended_and_does_not_stop_other_chats(server: Served) -> None:
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(chat, server, "endless")
        for _ in range(3):
            assert chat(server, "abc")[0] == 200
            assert not slow.done()
        status, answer = slow.result()
    assert status == 400 and "more than 10 s" in answer
    assert server.process.poll() is None
    assert chat(server, "abc")[0] == 200


def test_long_conversations_are_within_the_limits(server: Served) -> None:
    """The template's limits allow them; this prompt is longer than the context."""
    status, answer = chat(server, *["abc " * 100] * 2000)
    assert status == 400 and "context" in answer


def test_a_template_whose_reader_recurses(tmp_path: Path) -> None:
    """Over each elif: it is refused before the server listens. llama-server may end before it logs the cause."""
    write_target(tmp_path / "target.gguf")
    (tmp_path / "template.jinja").write_text("{% if 0 %}" + "{% elif 0 %}" * 1001 + "{% endif %}")
    given = ("-m", tmp_path / "target.gguf", "-d", "none", "--", "--chat-template-file", tmp_path / "template.jinja")
    reason = "(the supplied chat template|failed to apply template: the chat template calls itself)"
    with pytest.raises(AssertionError, match=f"refuses its arguments: {reason}"), serve(*given):
        pass
