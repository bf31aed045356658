"""Every request to a server of our own goes through serving/llama_server/loopback.py, which uses no proxy."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("bindings", "convert", "train", "bench", "demo", "packaging")


def test_nothing_else_opens_urls_through_the_proxy_of_the_environment() -> None:
    """urlopen() sends requests for 127.0.0.1 to the proxy too, unless no_proxy names it."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    calls = [str(path.relative_to(ROOT)) for path in files if "urlopen(" in path.read_text("utf-8")]
    assert len(files) > 100 and calls == []
