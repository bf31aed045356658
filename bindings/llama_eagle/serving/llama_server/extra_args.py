"""Checks of the arguments that `serve` passes through to llama-server, if they name models or change them."""

from __future__ import annotations

import codecs
import csv
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

from llama_eagle.errors import UsageError
from llama_eagle.files import decoded
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.pairing import RANK, require_scores
from llama_eagle.gguf.validate.adapters import require_adapter, require_control_vector
from llama_eagle.gguf.validate.overrides import Override, with_overrides

BEFORE = "Give it before --"
MODEL_FILE = "Give a file with --model before --"
DRAFT_FILE = "Give a file with --draft before --"
ENCODER_FILE = "Give a file with --mmproj before --"
UNCHECKED = {  # arguments that would bypass our checks -> remedy
    **dict.fromkeys(("--host", "--port", "--parallel", "-np", "--ctx-size", "-c"), BEFORE),
    **dict.fromkeys(("--model", "-m", "--mmproj", "-mm"), BEFORE),
    **dict.fromkeys(("--model-url", "-mu", "--hf-repo", "-hf", "-hfr", "--hf-file", "-hff"), MODEL_FILE),
    **dict.fromkeys(("--models-dir", "--models-preset"), MODEL_FILE),
    **dict.fromkeys(("--spec-draft-model", "--model-draft", "-md"), DRAFT_FILE),
    **dict.fromkeys(("--spec-draft-hf", "--hf-repo-draft", "-hfd", "-hfrd"), DRAFT_FILE),
    **dict.fromkeys(("--mmproj-url", "-mmu"), ENCODER_FILE),
    **dict.fromkeys(
        ("--lookup-cache-static", "-lcs", "--lookup-cache-dynamic", "-lcd"), "Draft with --draft lookup before --"
    ),
}
_PRESET = re.compile(r"--(fim|gpt-oss|vision-gemma|embd-gemma)-.*(default|spec)$")  # each names a model on the hub
_VARIABLES = {  # environment variables of llama-server that would bypass our checks -> remedy
    "LLAMA_ARG_MODEL_URL": MODEL_FILE,
    "LLAMA_ARG_HF_REPO": MODEL_FILE,
    "LLAMA_ARG_HF_FILE": MODEL_FILE,
    "LLAMA_ARG_MODELS_DIR": MODEL_FILE,
    "LLAMA_ARG_MODELS_PRESET": MODEL_FILE,
    "LLAMA_ARG_SPEC_DRAFT_MODEL": DRAFT_FILE,
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": DRAFT_FILE,
    "LLAMA_ARG_MMPROJ": ENCODER_FILE,
    "LLAMA_ARG_MMPROJ_URL": ENCODER_FILE,
}

_AS_ARGUMENTS = {  # environment variables of llama-server whose arguments are checked here -> the argument
    "LLAMA_ARG_API_KEY_FILE": "--api-key-file",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CORS_HEADERS": "--cors-headers",
    "LLAMA_ARG_CORS_METHODS": "--cors-methods",
    "LLAMA_ARG_CORS_ORIGINS": "--cors-origins",
    "LLAMA_ARG_POOLING": "--pooling",
    "LLAMA_ARG_STATIC_PATH": "--path",
}
_AS_FLAGS = {"LLAMA_ARG_EMBEDDINGS": "--embeddings", "LLAMA_ARG_RERANKING": "--reranking"}
_TEXT_FILES = ("--api-key-file", "--chat-template-file", "--grammar-file")
TRUE, FALSE = {"on", "enabled", "true", "1"}, {"off", "disabled", "false", "0"}


def from_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments that replace variables of llama-server, for those that our checks read.

    They go before the user's own arguments, which take precedence.
    """
    found = [
        part
        for name, argument in _AS_ARGUMENTS.items()
        if name in environment
        for part in (argument, environment[name])
    ]
    found += [flag for name, flag in _AS_FLAGS.items() if environment.get(name) in TRUE]
    if environment.get("LLAMA_ARG_JINJA") in FALSE or "LLAMA_ARG_NO_JINJA" in environment:
        found.append("--no-jinja")
    if environment.get("LLAMA_ARG_CORS_CREDENTIALS") in FALSE or "LLAMA_ARG_NO_CORS_CREDENTIALS" in environment:
        found.append("--no-cors-credentials")
    return tuple(found)


def normalized(argument: str) -> str:
    """Return the name of an argument as llama-server reads it: --ctx_size is --ctx-size."""
    name = argument.split("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def last_value(extra: Sequence[str], name: str, default: str) -> str:
    """Return the value of an argument, which is the last one given."""
    values = [value for argument, value in pairwise(extra) if normalized(argument) == name]
    return values[-1] if values else default


def refuse_unchecked(extra: Sequence[str], environment: Sequence[str] = ()) -> None:
    """Raise `UsageError` for arguments and variables that name a model, because no check of ours would see it."""
    for argument in extra:
        name = normalized(argument)
        remedy = MODEL_FILE if _PRESET.match(name) else UNCHECKED.get(name)
        if remedy is not None:
            raise UsageError(f"{argument} after -- would bypass our checks. {remedy}.")
    _require_template(extra)
    _require_texts(extra)
    for variable in environment:
        if variable in _VARIABLES:
            raise UsageError(f"{variable} in the environment would bypass our checks. {_VARIABLES[variable]}.")


def _require_template(extra: Sequence[str]) -> None:
    """Raise `UsageError` for a template's name. llama-server takes it for a template, which then drops all messages.

    Only without Jinja it knows names, and refuses others itself.
    """
    for argument, value in zip_longest(extra, extra[1:], fillvalue=""):
        is_name = value != "chatml" and "{{" not in value and "{%" not in value
        if normalized(argument) == "--chat-template" and is_name and "--no-jinja" not in map(normalized, extra):
            raise UsageError(
                f"--chat-template {value:.50}: not a Jinja template. Give one, chatml, or --chat-template-file; "
                "names of llama.cpp's templates need --no-jinja."
            )


def _require_texts(extra: Sequence[str]) -> None:
    """Raise `UsageError` for a text file with a byte order mark, which llama-server takes for a part of the text.

    Raises `InputError` for a file that is not UTF-8.
    """
    for argument, value in zip_longest(extra, extra[1:], fillvalue=""):
        if normalized(argument) not in _TEXT_FILES or not Path(value).is_file():
            continue
        data = Path(value).read_bytes()
        decoded(data, f"{argument} {value}")
        if data.startswith(codecs.BOM_UTF8):
            raise UsageError(f"{argument} {value}: begins with a byte order mark. Save it as UTF-8 without one.")


def names_key(text: str) -> bool:
    """Return True if a comma-separated list has an entry. llama-server drops empty ones."""
    return bool(text.strip(string.whitespace + ',"'))


def has_key(extra: Sequence[str]) -> bool:
    """Return True if the arguments set a key. Raises `UsageError` if they name one that llama-server would drop.

    A server without any key accepts all requests.
    """
    given = [*zip_longest(extra, extra[1:], fillvalue="")]
    texts = [value for argument, value in given if argument.replace("_", "-") == "--api-key"]
    files = [value for argument, value in given if argument.replace("_", "-") == "--api-key-file"]
    if not all(map(names_key, texts)):
        raise UsageError("--api-key after -- is empty. Give a key, or leave it out.")
    for file in files:
        _require_keys(Path(file))
    return bool(texts or files)


def _require_keys(path: Path) -> None:
    """Raise `UsageError` unless the file has a key, which is a line that is neither empty nor a comment."""
    try:
        lines = path.read_bytes().split(b"\n") if path.is_file() else None
    except OSError:
        lines = None
    if lines is None:
        raise UsageError(f"--api-key-file {path}: not a regular file that can be read. Correct the path.")
    if not any(line.strip() and not line.startswith(b"#") for line in lines):
        raise UsageError(f"--api-key-file {path}: no key in it. Write one on each line, without # before it.")


def changed_models(
    extra: Sequence[str], target: list[Header], draft: list[Header] | None
) -> tuple[list[Header], list[Header] | None]:
    """Return both models' headers as `--override-kv` changes them; check the files of adapters and control vectors.

    Raises `UsageError`, `InputError` or `IncompatibleModels`.
    """
    overrides = dict(_overrides(extra))
    target = with_overrides(target, overrides, "--override-kv")
    draft = draft and with_overrides(draft, overrides, "--override-kv")
    for path in named_files(extra, "--lora"):
        require_adapter(path, target)
    for path in named_files(extra, "--control-vector"):
        require_control_vector(path, target[0])
    if ranks(extra):
        require_scores(target, "leave --reranking out")
    return target, draft


def ranks(extra: Sequence[str]) -> bool:
    """Return True if the arguments request scores of a reranking model."""
    pooling = [*_values(extra, "--pooling")]
    return any(normalized(argument) in ("--rerank", "--reranking") for argument in extra) or pooling[-1:] == ["rank"]


def has_scores(extra: Sequence[str], target: Header) -> bool:
    """Return True if the server's vectors hold scores of a reranking model: by the last argument, or by the model."""
    found = "rank" if target.arch_key("pooling_type", 0) == RANK else ""
    for argument, value in zip_longest(extra, extra[1:], fillvalue=""):
        if normalized(argument) in ("--rerank", "--reranking"):
            found = "rank"
        elif normalized(argument) == "--pooling":
            found = value
    return found == "rank"


def _values(extra: Sequence[str], name: str) -> Iterator[str]:
    """Yield the entries of an argument that takes a list, from all its occurrences."""
    for argument, value in zip_longest(extra, extra[1:], fillvalue=""):
        if normalized(argument) == name:
            yield from next(csv.reader([value]), [])


def named_files(extra: Sequence[str], name: str) -> Iterator[Path]:
    """Yield the files that an argument names, with and without scales."""
    yield from map(Path, _values(extra, name))
    for value in _values(extra, f"{name}-scaled"):
        path, colon, scale = value.rpartition(":")
        if not colon or ":" in path or not _is_number(scale):
            raise UsageError(f"{name}-scaled {value}: expected FILE:SCALE. Correct it.")
        yield Path(path)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _overrides(extra: Sequence[str]) -> Iterator[tuple[str, Override]]:
    """Yield the overrides in reverse order: for a repeated key, llama.cpp uses the first."""
    for value in reversed([*_values(extra, "--override-kv")]):
        key, _, typed = value.partition("=")
        kind, _, text = typed.partition(":")
        try:
            yield key, _typed(kind, text)
        except (KeyError, ValueError):
            raise UsageError(
                f"--override-kv {value}: expected KEY=TYPE:VALUE with a TYPE of int, float, bool or str. Correct it."
            ) from None


def _typed(kind: str, text: str) -> Override:
    """Parse a value. Raises `ValueError` or `KeyError` if it does not have this type."""
    if kind == "bool":
        return {"true": True, "false": False}[text]
    return {"int": int, "float": float, "str": str}[kind](text)
