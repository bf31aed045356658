"""Chat templates of strangers: programs that may be wrong, slow or too large. What they may do is render."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.llama_pairs import complete, load
from fixtures.tiny_gguf import write_target
from fuzz.gguf_file import read, text
from llama_eagle.errors import InputError, UsageError
from llama_eagle.serving.llama_server import options as server
from llama_eagle.sessions.chats import template as chat_template
from llama_eagle.sessions.chats.template import render

MESSAGES = [{"role": "user", "content": "abc"}]
SLOW = "{{ 7 ** 40000000 % 10 }}"  # a minute

BAD = {
    "no template": ("{% for %}", "Expected an expression"),
    "a refusal": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "a name that is not there": ("{{ foo.bar }}", "'foo' is undefined"),
    "a way out of the sandbox": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "a macro that calls itself": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(1500) }}",
        "recurses",
    ),
    "deep brackets": ("{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "nested too deeply"),
    "a huge text": ("{{ 'a' * 1200000000 }}", "too much memory"),
    "a wide column": ("{{ 'a'.ljust(10 ** 8) }}", "writes 100000000 characters"),
}


def say(template: str, **variables: Any) -> str:
    return render(template, {"messages": MESSAGES, **variables}, "model.gguf")


@pytest.mark.parametrize("template, reason", BAD.values(), ids=BAD)
def test_is_refused(template: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"chat template of model.gguf failed: .*({reason})"):
        say(template)
    assert say("{{ messages[0].content }}") == "abc"


def test_a_slow_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_workers", chat_template._Workers())
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 1.0)
    with pytest.raises(InputError, match="more than 1 s"):
        say(SLOW)
    assert say("{{ messages[0].content }}") == "abc"


@pytest.mark.skipif(os.name != "posix", reason="there the clock is the limit")
def test_one_that_waits_for_a_core_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` failed on valid conversations next to many other programs."""
    workers = chat_template._Workers()
    monkeypatch.setattr(chat_template, "_workers", workers)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 1.0)
    assert say("a") == "a"
    process = workers._all[0]._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.5, process.send_signal, [signal.SIGCONT])
    timer.start()
    assert say("{{ messages[0].content }}") == "abc"
    timer.join()


def test_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_workers", chat_template._Workers())
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    assert say("{{ 'a' * 1000 }}") == "a" * 1000
    with pytest.raises(InputError, match="writes 1001 characters"):
        say("{{ 'a' * 1001 }}")


def test_ctrl_c_ends_the_rendering_and_the_next_answer_is_the_nexts() -> None:
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        say(SLOW)
    timer.join()
    assert say("{{ messages[0].content }}") == "abc"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_has_a_process_of_its_own() -> None:
    assert say("a") == "a"
    worker, _ = chat_template._workers._all
    ours = worker._process
    pid = os.fork()
    if not pid:
        os._exit(0 if say("b") == "b" and worker._process is not ours else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert say("c") == "c"
    assert worker._process is ours


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_without_python_renders_by_itself(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen program would start itself again."""
    workers = chat_template._Workers()
    monkeypatch.setattr(chat_template, "_workers", workers)
    monkeypatch.setattr(sys, name, value, raising=False)
    chat_template.start_worker()
    assert say("{{ messages[0].content }}") == "abc"
    assert workers._all[0]._process is None


def test_what_templates_are_given() -> None:
    """As transformers has it."""
    assert say("{{ x | tojson }} {{ x.b }}", x={"b": "é<"}) == '{"b": "é<"} é<'
    assert len(say("{{ strftime_now('%Y') }}")) == 4
    assert say("{% generation %}a{% endgeneration %}\n  {% if true %}\nb{% endif %}") == "ab"
    assert say("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}y") == "y"
    assert say("{{ messages[0].content }}", messages=({"content": "\ud83d"},)) == "\ud83d"
    with pytest.raises(UsageError, match="JSON cannot represent"):
        say("a", messages=[{"content": object()}])


@pytest.mark.native
def test_by_the_command_and_the_class(tmp_path: Path) -> None:
    """A model with a bad template still answers prompts."""
    file = read(write_target(tmp_path / "sound.gguf"))
    template = text(b"{{ raise_exception('\x1b[2J no') }}")
    file.keys = [key for key in file.keys if key[0] != b"tokenizer.chat_template"]
    file.keys.append((b"tokenizer.chat_template", 8, template))
    path = tmp_path / "bad.gguf"
    path.write_bytes(file.encode())
    told = "failed: \\x1b[2J no"
    assert_one_line_error(llama_eagle("generate", "-m", path, "-p", "abc", "-n", 4, "-t", 1), 3, told)
    assert_one_line_error(llama_eagle("serve", "-m", path, "-d", "none", "-c", 64), 3, told)
    chat = llama_eagle("chat", "-m", path, "-n", 4, "-t", 1, stdin="abc\n")
    assert (chat.code, told in chat.stderr, "\x1b" in chat.stderr) == (3, True, False)
    with load({"target": path}, draft=None) as llm:
        with pytest.raises(InputError, match=r"template of .* failed"):
            llm.create_chat_completion(MESSAGES)
        assert complete(llm, max_tokens=4, temperature=0)["text"] == "defg"
        assert llm.metadata["tokenizer.chat_template"]
        assert llm.chat_format == "chat_template.default"


def test_a_closed_worker_ends_what_it_renders_and_what_waits() -> None:
    endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    workers, request = chat_template._Workers(), json.dumps({"template": endless, "variables": {}}).encode()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(workers.request, request) for _ in range(4)]
        while any(worker._process is None for worker in workers._all):
            time.sleep(0.01)
        workers.close()
        errors = [each.result()["error"] for each in waiting]
    assert errors.count("this program ends") == 2
    assert workers.request(request) == {"error": "this program ends"}


def test_a_server_renders_a_sound_template_at_its_first_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path))
    rendered: list[str] = []
    monkeypatch.setattr(server, "render", lambda *given: rendered.append(given[0]) or render(*given))
    sound, changed, refused = "{{ messages[0].content }}", "{{ messages[0].content }} ", "{{ raise_exception('no') }}"
    for given, _ in itertools.product((sound, changed), range(2)):
        server._check_template(Mock(extra=()), Mock(keys={"tokenizer.chat_template": given}))
    for _ in range(2):
        with pytest.raises(InputError, match="no"):
            server._check_template(Mock(extra=()), Mock(keys={"tokenizer.chat_template": refused}))
    assert rendered == [sound, changed, refused, refused]
