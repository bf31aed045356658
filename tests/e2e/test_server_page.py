"""The server's web page: its files over HTTP, and chats in headless Chromium."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import warnings
from collections.abc import Iterator
from http.client import HTTPMessage
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_draft, write_target
from fixtures.vision_files import make_vision_files, png
from llama_eagle.native.build import build_info
from llama_eagle.serving.llama_server.options import PLAIN_PAGE

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
PATIENCE = 180_000  # ms
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"


def skip(reason: str) -> NoReturn:
    warnings.warn(reason, stacklevel=2)  # pytest's summary has warnings, and reasons of skipped tests only if asked
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        skip("no playwright: pip install --group integrations")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        skip("no browser: install the system's chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield running
        running.close()


def need_page() -> None:
    if not build_info().has_page:
        skip("this build has no chat page: docs/server.md says how to get it")


def unexpected(page: Any) -> list[str]:
    """Return the errors of the console but those of /tools, which a server without tools refuses (403)."""
    return [text for text in page.errors if "403" not in text]


def open_page(browser: Any, server: Served) -> Any:
    """Open the page; `requests` and `errors` of the console are recorded."""
    need_page()
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.errors, page.requests = [], []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: page.requests.append(request))
    page.goto(server.address)
    return page


def ask(page: Any, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Type a text and send it; return the body of the request, and the timings of the answer when it has ended."""
    box = page.get_by_role("textbox").first
    box.click()
    page.keyboard.type(text)
    with page.expect_response(lambda response: response.url.endswith("/chat/completions")) as answer:
        page.get_by_role("button", name="Send").click()
    assert answer.value.status == 200
    events = [json.loads(event) for event in re.findall(r"^data: (\{.*)$", answer.value.text(), re.MULTILINE)]
    return answer.value.request.post_data_json, next((e["timings"] for e in reversed(events) if "timings" in e), {})


def posted(page: Any, path: str) -> list[Any]:
    """Return the answers to the page's POST requests of a path."""
    return [r.response() for r in page.requests if r.method == "POST" and r.url.endswith(path)]


def fetch(server: Served, path: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
    """Send a GET request with these headers alone."""
    connection = server.connect()
    connection.putrequest("GET", path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def test_the_files_of_the_page(tmp_path: Path) -> None:
    """They are packed; clients that do not accept that, as curl without --compressed, are told so."""
    need_page()
    with serve("-m", write_target(tmp_path / "target.gguf"), "-c", 256, "-t", 1) as server:
        status, headers, packed = fetch(server, "/", Accept_Encoding="br, gzip")
        index = gzip.decompress(packed).decode()
        assert status == 200 and "disabledToolKeys" in index.partition("</head>")[0]
        assert fetch(server, "/", Accept_Encoding="gzip", If_None_Match=headers["ETag"])[0] == 304
        scripts = re.findall(r"_app/immutable/[\w./-]+\.(?:js|css)", index)
        assert scripts
        for path in ("index.html", "sw.js", "build.json", *scripts):
            status, headers, packed = fetch(server, f"/{path}", Accept_Encoding="gzip")
            assert status == 200 and headers["Content-Encoding"] == "gzip" and gzip.decompress(packed)
        assert fetch(server, "/")[0] == 415


@pytest.mark.slow
def test_a_turn_streams(browser: Any, tmp_path: Path) -> None:
    pair = ["-m", write_target(tmp_path / "target.gguf"), "-d", write_draft(tmp_path / "draft.gguf")]
    with serve(*pair, "-c", 1024, "-t", 1, "--n-draft", 2, "--", "-n", 400) as server:
        page = open_page(browser, server)
        sent, timings = ask(page, "hello")
        page.get_by_text(ALPHABET).first.wait_for()
        assert sent["stream"]
        assert timings["draft_n_accepted"] > 0
        page.reload()
        page.get_by_text(ALPHABET).first.wait_for()  # from the browser's memory
        assert unexpected(page) == []
        page.close()


@pytest.mark.slow
def test_tools_are_off_until_a_user_enables_them(browser: Any, tmp_path: Path) -> None:
    with serve("-m", write_target(tmp_path / "target.gguf"), "-d", "none", "-c", 1024, "-t", 1) as server:
        page = open_page(browser, server)
        assert "tools" not in ask(page, "HELLO")[0]
        page.evaluate("localStorage.setItem('LlamaUi.disabledToolKeys', '[]')")  # a user's choice
        page.goto(f"{server.address}/index.html")  # another document: a new conversation
        assert len(ask(page, "HELLO")[0]["tools"]) == 2
        assert unexpected(page) == []
        page.close()


@pytest.mark.slow
def test_tools_of_the_server_are_sent(browser: Any, tmp_path: Path) -> None:
    options = ["-d", "none", "-c", 1024, "-t", 1, "--", "--tools", "file_glob_search"]
    with serve("-m", write_target(tmp_path / "target.gguf"), *options) as server:
        page = open_page(browser, server)
        sent = ask(page, "HELLO")[0]
        assert [tool["function"]["name"] for tool in sent["tools"]] == ["file_glob_search"]
        assert {answer.status for answer in posted(page, "/tools")} == {200}  # the home folder
        page.close()


@pytest.mark.slow
def test_a_picture_can_be_attached(browser: Any, tmp_path: Path) -> None:
    files = make_vision_files("qwen35", tmp_path)
    (tmp_path / "picture.png").write_bytes(png(1))
    options = ["-c", 1024, "-t", 1, "--mmproj", files.mmproj, "--", "--chat-template", "chatml", "-n", 8]
    with serve("-m", files.target, "-d", "none", *options) as server:
        page = open_page(browser, server)
        page.locator("input[type=file]").first.set_input_files(tmp_path / "picture.png")
        page.get_by_alt_text("picture.png").first.wait_for()
        content = ask(page, "what is in it")[0]["messages"][-1]["content"]
        assert "image_url" in {part["type"] for part in content}
        page.close()


@pytest.mark.slow
def test_the_plain_page_names_the_address(browser: Any, tmp_path: Path) -> None:
    """A build without the chat page shows this page."""
    target = write_target(tmp_path / "target.gguf")
    with serve("-m", target, "-c", 512, "-t", 1, "--", "--path", PLAIN_PAGE) as server:
        page = browser.new_page()
        page.goto(server.address)
        assert f"curl {server.address}/v1/chat/completions" in page.inner_text("body")
        page.close()
