"""The server's web page in headless Chromium: a chat turn streams, a picture goes along."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_draft, write_target
from fixtures.vision_files import make_vision_files, png
from llama_eagle.native.build import build_info
from llama_eagle.serving.options import PLAIN_PAGE

pytestmark = [pytest.mark.native, pytest.mark.slow]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
PATIENCE = 60_000  # ms


def skip(reason: str) -> NoReturn:
    warnings.warn(reason, stacklevel=2)  # pytest's summary has warnings, and reasons of skipped tests only if asked
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        skip("no playwright: pip install --group dev")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        skip("no browser: install the system's chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


def open_page(browser: Any, server: Served) -> Any:
    if not build_info().has_page:
        skip("this build has no chat page: docs/server.md says how to get it")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.errors = []
    page.on("console", lambda message: page.errors.append(message) if message.type == "error" else None)
    page.goto(server.address)
    return page


def unexplained(page: Any) -> list[str]:
    """The errors of the console but one: the page looks up the home folder by a tool of the server, once, and goes on
    without it where llama-server runs without --tools and answers 403."""
    errors = [(message.text, message.location["url"]) for message in page.errors]
    return [f"{text} ({url})" for text, url in errors if not (url.endswith("/tools") and "403" in text)]


def ask(page: Any, text: str) -> None:
    """Types it and sends it."""
    box = page.get_by_role("textbox").first
    box.click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def test_a_turn_streams(browser: Any, tmp_path: Path) -> None:
    pair = ["-m", write_target(tmp_path / "target.gguf"), "-d", write_draft(tmp_path / "draft.gguf")]
    with serve(*pair, "-c", 1024, "-t", 1, "--n-draft", 2, "--", "-n", 400) as server:
        page = open_page(browser, server)
        requests: list[Any] = []
        page.on("request", lambda request: requests.append(request))
        ask(page, "hello")
        page.get_by_text(ALPHABET).first.wait_for()
        (sent,) = [r.post_data_json for r in requests if r.url.endswith("/chat/completions")]
        assert sent["stream"]
        assert unexplained(page) == []
        page.close()


def test_a_picture_can_be_attached(browser: Any, tmp_path: Path) -> None:
    files = make_vision_files("qwen35", tmp_path)
    (tmp_path / "picture.png").write_bytes(png(1))
    options = ["-c", 1024, "-t", 1, "--mmproj", files.mmproj, "--", "--chat-template", "chatml", "-n", 8]
    with serve("-m", files.target, "-d", "none", *options) as server:
        page = open_page(browser, server)
        page.locator("input[type=file]").first.set_input_files(tmp_path / "picture.png")
        page.get_by_alt_text("picture.png").first.wait_for()
        with page.expect_response(lambda response: response.url.endswith("/chat/completions")) as answer:
            ask(page, "what is in it")
        content = answer.value.request.post_data_json["messages"][-1]["content"]
        assert answer.value.status == 200
        assert "image_url" in {part["type"] for part in content}
        page.close()


def test_the_plain_page_names_the_address(browser: Any, tmp_path: Path) -> None:
    """A build without the chat page shows this page."""
    target = write_target(tmp_path / "target.gguf")
    with serve("-m", target, "-c", 512, "-t", 1, "--", "--path", PLAIN_PAGE) as server:
        page = browser.new_page()
        page.goto(server.address)
        assert f"curl {server.address}/v1/chat/completions" in page.inner_text("body")
        page.close()
