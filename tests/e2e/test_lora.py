"""`--lora FILE[:SCALE]` of every command: the text of the adapted model, with each drafter, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.adapters import BASE, PAIR, write_adapter
from fixtures.command import Outcome, assert_one_line_error, llama_eagle
from fixtures.tiny_gguf import HIDDEN, Variant, write_draft, write_target
from llama_eagle import EagleLlama
from llama_eagle.cli.commands.answer import _adapter
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drop_in.options import from_options
from llama_eagle.errors import UsageError
from llama_eagle.serving.llama_server.options import ServerOptions, check
from llama_eagle.sessions.options import ContextOptions, LoadOptions, Lora, read_lora

pytestmark = pytest.mark.native

N = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora,commas")
    write_target(folder / "target.gguf", Variant(spread=1.0))
    write_draft(folder / "draft.gguf")
    write_adapter(folder / "lora.gguf", size=2.0)
    write_adapter(folder / "wide.gguf", {**PAIR, f"{BASE}.lora_a": (2, 2 * HIDDEN)})
    return folder


@pytest.fixture(scope="module")
def texts(files: Path) -> dict[str, str]:
    """By --lora, as EagleLlama's lora_path and lora_scale give them without drafts."""

    def text(**options: Any) -> str:
        path = str(files / "target.gguf")
        with EagleLlama(path, draft="none", n_ctx=128, n_threads=1, verbose=False, **options) as llm:
            return str(llm.create_completion("abc", max_tokens=N, temperature=0)["choices"][0]["text"])

    lora = str(files / "lora.gguf")
    found = {"": text(), "lora.gguf": text(lora_path=lora), "lora.gguf:-1.5": text(lora_path=lora, lora_scale=-1.5)}
    assert len(set(found.values())) == 3
    return found


def readable(text: str) -> str:
    """Return a text without incomplete characters, which llama-cpp-python leaves out."""
    return text.replace("\ufffd", "")


def run(files: Path, command: str, *arguments: object) -> Outcome:
    done = llama_eagle(command, *arguments, "-m", files / "target.gguf", "-t", 1)
    assert done.code == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("draft", "lora"), [("none", "lora.gguf:0"), ("lookup", "lora.gguf:-1.5"), ("draft.gguf", "lora.gguf")]
)
def test_generate(draft: str, lora: str, files: Path, texts: dict[str, str]) -> None:
    drafter = files / draft if draft.endswith("gguf") else draft
    options = ("-p", "abc", "--raw", "-n", N, "--temp", 0, "-d", drafter, "--n-draft", 0 if draft == "none" else 3)
    done = run(files, "generate", *options, "--lora", files / lora, "--json")
    assert readable(done.json["text"]) == texts["" if lora.endswith(":0") else lora]


@pytest.mark.parametrize("lora", ["lora.gguf:-1.5"])
def test_answer(lora: str, files: Path, texts: dict[str, str], tmp_path: Path) -> None:
    """By the server."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    options = (tmp_path / "prompts.jsonl", "--raw", "-n", N, "--temp", 0, "-o", tmp_path / "out.jsonl", "-d", "none")
    run(files, "answer", *options, "--lora", files / lora)
    assert readable(json.loads((tmp_path / "out.jsonl").read_text())["text"]) == "abc" + texts[lora]


def test_chat(files: Path, texts: dict[str, str]) -> None:
    options = ("-n", N, "--temp", 0, "-d", "none", "-m", files / "target.gguf", "-t", 1)
    plain, adapted, off = (
        llama_eagle("chat", *options, *more, stdin="abc\n").stdout
        for more in ((), ("--lora", files / "lora.gguf"), ("--lora", f"{files / 'lora.gguf'}:0"))
    )
    assert adapted != plain == off


def test_the_options_of_a_conversation() -> None:
    given = from_options(DraftingOptions(), ContextOptions(), LoadOptions(lora=Lora(Path("a"), 0.5)))
    assert (given["lora_path"], given["lora_scale"]) == (Path("a"), 0.5)


SPELLINGS = {"a.gguf": ("a.gguf", 1.0), "a:b.gguf:-2": ("a:b.gguf", -2.0), "c:x.gguf": ("c:x.gguf", 1.0)}


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings(text: str) -> None:
    assert read_lora(text) == Lora(Path(SPELLINGS[text][0]), SPELLINGS[text][1])


@pytest.mark.parametrize("text", ["a.gguf:nan", "a.gguf:inf", ":1", f"{__file__}:half", f"{__file__}:"])
def test_spellings_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"FILE:SCALE with a finite scale"):
        read_lora(text)


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "bench", "evaluate"])
def test_adapters_that_do_not_fit(command: str, files: Path) -> None:
    options = ("-p", "a") if command == "generate" else ()
    arguments = ("-m", files / "target.gguf", "-d", "lookup", "--lora", files / "wide.gguf")
    assert_one_line_error(llama_eagle(command, *options, *arguments, stdin="a\n"), 3, "has shape")


def test_an_answer_of_another_adapter_is_not_continued(files: Path) -> None:
    def kept(lora: Lora | None) -> tuple[object, ...]:
        drafts, context = DraftingOptions("none"), ContextOptions(n_ctx=64)
        return _adapter(check(ServerOptions(files / "target.gguf", drafts, context, load=LoadOptions(lora=lora))))

    lora = files / "lora.gguf"
    assert len({kept(None), kept(Lora(lora)), kept(Lora(lora, 0.5))}) == 3
