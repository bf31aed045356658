"""Text of the demo pair: Django's documentation (BSD-3-Clause), as plain documents and as chats made from them.

    pip download --no-deps --no-binary :all: django==5.2.8
    python -m llama_eagle.demo.corpus django-5.2.8.tar.gz -o data

writes data/train.jsonl and data/held-out.jsonl, with one {"text": ...} or {"messages": [...]} per line, and
data/prompts.jsonl, with questions and beginnings from held-out documents. demo/held-out.jsonl is that file.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

SOURCE = "django-5.2.8.tar.gz"
SHA256 = "23254866a5bb9a2cfa6004e8b809ec6246eba4b58a7589bc2772f1bcc8456c7f"
FOLDERS = ("faq", "howto", "intro", "ref", "topics")  # folders of docs/ without repetitions, such as release notes
HELD_OUT_ONE_IN = 25  # one document in N is not used for training
ANSWER_CHARACTERS = 1200  # approximate length of a chat's answer: complete paragraphs from a section's beginning
PROMPT_CHARACTERS = 200
QUESTIONS = ("What is {}?", "Tell me about {}.", "Explain {}.", "How does Django handle {}?", "Write about {}.")

Sample = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and the paragraphs below it."""

    title: str
    paragraphs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Document:
    """One file of the documentation, without markup."""

    path: str
    sections: tuple[Section, ...]

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.path.encode()) % HELD_OUT_ONE_IN == 0

    @property
    def text(self) -> str:
        parts = [f"# {s.title}\n\n" + "\n\n".join(s.paragraphs) for s in self.sections]
        return "\n\n".join(parts) + "\n"

    def chats(self) -> Iterator[list[dict[str, str]]]:
        """Yield a question about each section of sufficient length, answered by its beginning."""
        for section in self.sections:
            answer = _beginning(section.paragraphs)
            if len(answer) < 80:
                continue
            kind = zlib.crc32(f"{self.path} {section.title}".encode()) % len(QUESTIONS)
            question = QUESTIONS[kind].format(section.title)
            yield [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def read_documents(source: str | Path) -> list[Document]:
    """Return the documents in the source distribution of Django, sorted by path.

    Raises ValueError if its checksum is not that of this module.
    """
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{source}: sha256 is {digest}, that of {SOURCE} is {SHA256}")
    documents = []
    with tarfile.open(source) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            path = member.name.partition("/docs/")[2]
            if path.endswith(".txt") and path.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
                file = archive.extractfile(member)
                assert file is not None
                sections = tuple(clean(file.read().decode()))
                documents.append(Document(path, sections))
    return documents


def samples(documents: list[Document]) -> list[Sample]:
    """Return each document as running text, followed by its chats."""
    found: list[Sample] = []
    for document in documents:
        found.append({"text": document.text})
        found.extend({"messages": messages} for messages in document.chats())
    return found


def prompts(documents: list[Document]) -> Iterator[Sample]:
    """Yield questions, and beginnings of sections to continue, in the format of `llama-eagle evaluate`."""
    for document in documents:
        for question, _ in document.chats():
            yield {"category": "chat", "turns": [question["content"]]}
        for section in document.sections:
            text = f"# {section.title}\n\n{section.paragraphs[0]}"
            if len(text) > PROMPT_CHARACTERS:
                yield {"category": "text", "prompt": text[:PROMPT_CHARACTERS].rpartition(" ")[0]}


# -- reStructuredText to text -------------------------------------------------------------------------------------

_HEADING = re.compile(r"(?:^([=~^*-])\1{2,}\n)?^(\S[^\n]*)\n([=~^\"'*-])\3{2,}\n", re.MULTILINE)
_ROLE = re.compile(r":(?:\w+:)?[\w-]+:`([^`]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`__?|`([^`]+)`__?|\b(\w+)__?(?=[\s.,;:)]|$)")
_KEPT = "admonition attribute class classmethod data django-admin-option exception function method object rubric"
_KEPT_DIRECTIVES = {*_KEPT.split(), "staticmethod"}
_LABELS = {"currentmodule", "django-admin", "envvar", "fieldlookup", "highlight", "module", "program", "setting"}
_LABELS |= {"templatefilter", "templatetag"}  # the text after them repeats their name
_NOTES = {"caution", "hint", "important", "note", "tip", "warning"}
_CODE = {"code-block", "console", "parsed-literal"}


def clean(text: str) -> Iterator[Section]:
    """Yield the sections of a reStructuredText file without roles, links, labels and most directives."""
    headings = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in headings[1:]), len(text)]
    for match, end in zip(headings, ends, strict=True):
        paragraphs = tuple(_paragraphs(text[match.end() : end]))
        if paragraphs:
            yield Section(_inline(match[2]), paragraphs)


def _paragraphs(body: str) -> Iterator[str]:
    """Yield the blocks between blank lines: prose in one line each, code unchanged."""
    dropped_at: int | None = None  # indentation of a directive that is dropped with its content
    code_at: int | None = None  # indentation of the line that announced the current code block
    for block in re.split(r"\n\s*\n", body.strip("\n")):
        lines = block.rstrip().split("\n")
        indent = _indent(lines[0])
        if dropped_at is not None and indent > dropped_at:
            continue
        dropped_at = None
        if code_at is not None and indent > code_at:
            yield "\n".join(lines)
            continue
        match = re.match(r"\s*\.\. (?:([\w:-]+)::\s*(.*)|.*)", lines[0])
        code = match[1] in _CODE if match else lines[-1].endswith("::")
        code_at = indent if code else None
        if match:
            kept = _directive(match[1], match[2] or "", lines, indent)
            if kept is None:
                dropped_at = indent
            elif kept.strip():
                yield _inline(kept)
        elif not re.match(r"\s*(__ |:\w+:)", lines[0]):
            yield _inline("\n".join(_unwrapped(lines)))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _unwrapped(lines: list[str]) -> list[str]:
    """Join the lines of each paragraph and list item; keep those of tables and definitions."""
    if any(re.match(r"\s*([=+|]{2,}|[+|][-= ])", line) for line in lines):
        return lines
    joined: list[str] = []
    margin = -1  # column of the current item's text
    for line in lines:
        marker = re.match(r"\s*(?:[*-]|#\.|\d+\.) +", line)
        if joined and not marker and _indent(line) == margin:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
        margin = marker.end() if marker else _indent(line)
    return joined


def _directive(name: str | None, argument: str, lines: list[str], indent: int) -> str | None:
    """Return the text of a directive; None drops its content too."""
    space = " " * indent
    rest = [line for line in lines[1:] if not re.match(r"\s*:[\w-]+:( |$)", line)]
    content = "\n".join(rest if name in _CODE else _unwrapped(rest))
    if name in _CODE:
        return content
    if name in _NOTES:
        return f"{space}{str(name).capitalize()}: {argument}".rstrip() + (f"\n{content}" if content else "")
    if name in _KEPT_DIRECTIVES:
        return f"{space}{argument}:" + (f"\n{content}" if content else "")
    if name is None or name in _LABELS:
        return ""
    return None


def _inline(text: str) -> str:
    """Remove roles and links: :class:`~a.b.C` becomes `C`, ``x`` becomes `x`, a paragraph's :: becomes :."""
    text = text.replace("``", "\x00")
    text = _ROLE.sub(lambda match: _role_text(match[1]), text)
    text = _LINK.sub(lambda match: match[1] or match[2] or match[3], text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return text.replace("\\ ", "").replace("\\", "").replace("\x00", "`").replace("\x01", "`")


def _role_text(content: str) -> str:
    title, _, _ = content.partition("<")
    if title.startswith("~"):
        return f"\x01{title.rpartition('.')[2]}\x01"
    return title.strip() if " " in title.strip() or title.startswith("/") else f"\x01{title.strip()}\x01"


def _beginning(paragraphs: tuple[str, ...]) -> str:
    """Return complete paragraphs, at least one, up to about ANSWER_CHARACTERS."""
    taken = ""
    for paragraph in paragraphs:
        if taken and len(taken) + len(paragraph) > ANSWER_CHARACTERS:
            break
        taken += ("\n\n" if taken else "") + paragraph
    return taken[: 2 * ANSWER_CHARACTERS]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write train.jsonl and held-out.jsonl from Django's documentation.")
    parser.add_argument("source", type=Path, help=f"Source distribution {SOURCE}.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="Folder for the files.")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    documents = read_documents(arguments.source)
    train, held_out = ([d for d in documents if d.held_out == wanted] for wanted in (False, True))
    files = {"train": samples(train), "held-out": samples(held_out), "prompts": prompts(held_out)}
    for name, records in files.items():
        # A document that consisted of markup only is empty, which the trainer refuses.
        lines = [json.dumps(r, ensure_ascii=False) for r in records if str(r.get("text", "-")).strip()]
        (arguments.output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
