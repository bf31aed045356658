"""Settings of the front, and what is left of `serve`'s options for the child."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llama_eagle.serving.access import Access
from llama_eagle.serving.llama_server.chat_settings import ChatSettings, chat_settings
from llama_eagle.serving.llama_server.child import Child
from llama_eagle.serving.llama_server.extra_args import has_scores, last_value, normalized
from llama_eagle.serving.llama_server.options import EMBEDDING, Checked, ServerOptions, is_for_this_machine
from llama_eagle.serving.saved.prompts_folder import prompts_folder

MAX_BODY_MIB = 32
CREDENTIALS = ["--cors-credentials", "--no-cors-credentials"]
KEY_ARGUMENTS = ("--api-key", "--api-key-file")


@dataclass(frozen=True)
class FrontSettings:
    """host, port: where the front listens. access: who may use it. max_body: largest body of a request, in bytes.

    prefix: that of all paths. chats: how the child was told to handle them. n_trained: context of the model's training
    in tokens, 0 if it is unknown. has_vectors: the server was started for vectors or scores, not for text. has_scores:
    the model's vectors are scores of documents. spm_infill: a gap's suffix comes first.
    """

    host: str
    port: int
    access: Access
    max_body: int = MAX_BODY_MIB << 20
    prefix: str = ""
    chats: ChatSettings = field(default_factory=ChatSettings)
    n_trained: int = 0
    has_vectors: bool = False
    has_scores: bool = False
    spm_infill: bool = False


def front_settings(served: Checked, environment: Mapping[str, str] = os.environ) -> FrontSettings:
    """Return the settings of a front for one model."""
    n_trained = int(served.target.arch_key("context_length", 0))
    scores = has_scores(served.options.extra, served.target)
    return replace(settings_of(served.options, environment), n_trained=n_trained, has_scores=scores)


def settings_of(options: ServerOptions, environment: Mapping[str, str] = os.environ) -> FrontSettings:
    """Return the front's part of the options, of the environment, and of llama-server's options, without a model's."""
    keys = tuple(_listed(options.api_key or environment.get("LLAMA_API_KEY", "")))
    access = Access(keys, is_for_this_machine(options))
    prefix = environment.get("LLAMA_ARG_API_PREFIX", "")
    chats = chat_settings(options.extra, environment, hides_control=not options.parse_special)
    settings = FrontSettings(options.host, options.port, access, max_body(environment), prefix, chats)
    return for_arguments(settings, options.extra)


def for_arguments(settings: FrontSettings, extra: Sequence[str]) -> FrontSettings:
    """Return the settings with those of llama-server's arguments."""
    origins = last_value(extra, "--cors-origins", settings.access.origins)
    credentials = [name for name in map(normalized, extra) if name in CREDENTIALS]
    keys = (*settings.access.keys, *_keys(extra))
    access = replace(
        settings.access,
        keys=keys,
        origins=origins,
        has_credentials=credentials[-1:] != CREDENTIALS[1:],
        methods=last_value(extra, "--cors-methods", settings.access.methods),
        allowed_headers=last_value(extra, "--cors-headers", settings.access.allowed_headers),
    )
    spm_infill = any(normalized(argument) == "--spm-infill" for argument in extra)
    prefix = last_value(extra, "--api-prefix", settings.prefix)
    has_vectors = not EMBEDDING.isdisjoint(map(normalized, extra))
    return replace(settings, access=access, prefix=prefix, spm_infill=spm_infill, has_vectors=has_vectors)


def max_body(environment: Mapping[str, str]) -> int:
    """Return the maximum size of a body in bytes, from LLAMA_EAGLE_MAX_BODY_MIB."""
    given = environment.get("LLAMA_EAGLE_MAX_BODY_MIB", "")
    return (int(given) if given.isdecimal() and int(given) else MAX_BODY_MIB) << 20


def for_child(served: Checked, child: Child) -> Checked:
    """Return the options of the child: it listens for the front alone."""
    extra = tuple(without_keys(served.options.extra))
    if served.options.cache_disk:
        extra = (*extra, "--slot-save-path", str(prompts_folder(served)))
    options = replace(served.options, host=child.host, port=0, api_key=child.key, extra=extra, cache_disk=0)
    return replace(served, options=options)


def without_keys(extra: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without keys, which the list of processes would show."""
    left_out = False
    for argument in extra:
        is_left_out, left_out = left_out, normalized(argument) in KEY_ARGUMENTS
        if not left_out and not is_left_out:
            yield argument


def _keys(extra: Sequence[str]) -> Iterator[str]:
    """Yield the keys in llama-server's arguments and in the files that they name, as llama-server reads them."""
    for argument, value in itertools.pairwise(extra):
        if normalized(argument) == "--api-key":
            yield from _listed(value)
        elif normalized(argument) == "--api-key-file":
            lines = Path(value).read_text("utf-8").split("\n")
            yield from (line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#"))


def _listed(text: str) -> Iterator[str]:
    """Yield the entries of a comma-separated list."""
    yield from (key for row in csv.reader([text]) for key in row if key)
