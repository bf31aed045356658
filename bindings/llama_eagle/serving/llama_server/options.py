"""Options of `serve`, and their translation into llama-server's command line and environment."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.drafting.options import DraftingOptions, about
from llama_eagle.drafting.price import learn
from llama_eagle.drafting.resolve import Choice, resolve, session_options, without_lookup
from llama_eagle.errors import EagleError, EnvironmentFailure, UsageError, refuse
from llama_eagle.files import kept_json, typed, write_json
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.pairing import DRAFT_KINDS, read_draft, require_models, without_text
from llama_eagle.gguf.rotation import default_context, scaling_included
from llama_eagle.gguf.size import DraftContext, Slots, require_memory
from llama_eagle.gguf.validate import small
from llama_eagle.gguf.validate.adapters import require_adapter
from llama_eagle.gguf.validate.assistant import ASSISTANT
from llama_eagle.native.build import build_info
from llama_eagle.native.limits import MAX_CONTEXT, read_size
from llama_eagle.native.processor.threads import n_threads, read_threads, warn_excess
from llama_eagle.native.rpc import read_servers
from llama_eagle.serving.llama_server.extra_args import (
    changed_models,
    from_environment,
    has_key,
    names_key,
    normalized,
    refuse_unchecked,
)
from llama_eagle.serving.llama_server.grammars import with_grammars
from llama_eagle.sessions.chats.template import WORKER, end_worker, render
from llama_eagle.sessions.devices import last_device, require_servers
from llama_eagle.sessions.options import CACHE_TYPES, MTP, ContextOptions, LoadOptions, Lora, batch_too_small

TEST_CHAT = {
    "messages": [{"role": "user", "content": "Hello"}], "tools": None, "bos_token": "", "eos_token": "",
    "add_generation_prompt": True,
}  # fmt: skip
MAX_SLOTS = 16
EMBEDDING = {"--embedding", "--embeddings", "--rerank", "--reranking"}  # arguments after which nothing is generated
NO_SAVED_PROMPTS = {*EMBEDDING, "--slot-save-path", "--sleep-idle-seconds", "--no-slots"}  # arguments of llama-server
# Beginning of what replaces control tokens in texts; clients do not know it.
LITERAL_MARK = f"eagle{secrets.token_hex(16)}_"
PLAIN_PAGE = Path(__file__).parents[1] / "page"  # for a build without the chat page


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server for one target. `n_ctx`: tokens per slot (0: the model's); replaces that of `context`.
    None is the default of conversations.

    parallel: number of slots, one conversation each. parse_special: recognize control tokens in prompts and messages.
    api_key: key that clients must send. open_to_all: allow requests without a key on non-loopback addresses. extra:
    further arguments for llama-server. cache_disk: bytes for prompts that survive a restart (0: none). cache_ram: MiB
    for prompts that may return. Raises `UsageError` for values that cannot work.
    """

    model: str | Path
    drafting: DraftingOptions
    context: ContextOptions
    n_ctx: int | None = None
    mmproj: Path | None = None  # the target's vision encoder
    load: LoadOptions = LoadOptions()
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    open_to_all: bool = False
    parallel: int = 4
    cache_disk: int = 0
    cache_ram: int = 1024
    parse_special: bool = True
    alias: str | None = None
    verbose: bool = False
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        inherited = tuple(from_environment(os.environ))
        if self.extra[: len(inherited)] != inherited:  # not a copy of checked options
            object.__setattr__(self, "extra", (*inherited, *self.extra))
        is_closed = has_key(self.extra) or bool(self.api_key)
        refuse_unchecked(self.extra, tuple(os.environ))
        without_prompts = NO_SAVED_PROMPTS & {*map(normalized, self.extra)}
        refuse(
            {
                f"port={self.port} is not in 0..65535": not 0 <= self.port <= 65535,
                f"n_ctx={self.n_ctx} is not in 0..{MAX_CONTEXT}": not 0 <= (self.n_ctx or 0) <= MAX_CONTEXT,
                f"cache_disk does not go together with {', '.join(sorted(without_prompts))}": (
                    self.cache_disk > 0 and bool(without_prompts)
                ),
                f"parallel={self.parallel} is not 1 to {MAX_SLOTS}": not 1 <= self.parallel <= MAX_SLOTS,
                f"the server does not support draft_sampling={self.drafting.draft_sampling!r}, only 'match'": (
                    self.drafting.draft_sampling != "match"
                ),
                "the server does not support a drafter of your own": self.drafting.drafter is not None,
                f"host={self.host!r} names several addresses. Give one": not {",", '"'}.isdisjoint(self.host),
                "the key is empty. Give another, or leave it out": (
                    self.api_key is not None and not names_key(self.api_key)
                ),
                "api_key contains a line break or another character that HTTP headers forbid. Use letters and digits": (
                    not (self.api_key or "x").isprintable()
                ),
                f"anyone who can reach {self.host} could use this server. Set --api-key, or allow it with "
                "--no-api-key": (not (is_closed or self.open_to_all or is_local(self.host))),
            }
        )


def read_cache_disk(text: str) -> int:
    """Return the bytes of a size such as "8G"; 0 for "0". Raises `UsageError` for anything else."""
    size = 0 if text == "0" else read_size(text)
    if size is None:
        raise UsageError(f"cache_disk={text!r}: give a number with M or G, such as 8G, or 0.")
    return size


def is_local(host: str) -> bool:
    """Return True if only this machine reaches the host: a socket file, or a name or address of the loopback device."""
    try:
        return host.endswith(".sock") or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_for_this_machine(options: ServerOptions) -> bool:
    """Return True if pages of other sites must not use the server, as long as it has no key."""
    has_origins = any(argument.split("=")[0] == "--cors-origins" for argument in options.extra)
    return is_local(options.host) and not options.open_to_all and not has_origins


@dataclass(frozen=True)
class Checked:
    """Options whose files have been checked. `drafts`: the resolved options; `why`: the reason for the choice.

    draft: header of the draft model, or the target's for its own head; None: no model drafts.
    """

    options: ServerOptions
    drafts: DraftingOptions
    why: str
    target: Header
    draft: Header | None

    @property
    def n_slot(self) -> int:
        """Context size of a slot in tokens: at most that of the training, which is llama-server's own limit."""
        n_trained = int(self.target.arch_key("context_length", 4096))
        wanted = default_context(self.target) if self.options.n_ctx is None else self.options.n_ctx or n_trained
        return wanted if _scales_positions(self.options.extra) else min(wanted, n_trained)

    @property
    def n_ctx(self) -> int:
        """Context size of all slots together, in tokens."""
        return self.options.parallel * self.n_slot

    def learn(self, tried: Sequence[int], accepted: Sequence[int]) -> None:
        """Keep the acceptance of the draft model by position, for the price of its next use."""
        if self.options.load.lora is None:  # of another text
            learn(self.target.path, self.drafts.draft_file, tried, accepted)

    @property
    def shortened(self) -> str | None:
        """Warning for contexts that are shorter than requested, or None."""
        if self.n_slot >= (self.options.n_ctx or 0):
            return None
        return (
            f"a conversation has {self.n_slot} tokens instead of {self.options.n_ctx} (n_ctx), because the model was "
            f"trained with {self.n_slot}{scaling_included(self.target)}."
        )


def _scales_positions(extra: Collection[str]) -> bool:
    """Return True if arguments of llama-server or its environment change the context that the model can use."""
    names = {*map(normalized, extra), *os.environ}
    return any(name.startswith(("--rope-", "--yarn-", "LLAMA_ARG_ROPE_", "LLAMA_ARG_YARN_")) for name in names)


def check(options: ServerOptions) -> Checked:
    """Check that both files are valid and fit, and that the slots' contexts fit into memory. Loads no weights.

    Raises `InputError`, `IncompatibleModels`, `UsageError` or `EnvironmentFailure`.
    """
    choice = _drafter(options)
    own_head = choice.draft == MTP
    files, draft_files = changed_models(
        options.extra,
        read_model(choice.target)[1],
        None if own_head or choice.draft is None else read_draft(choice.draft),
    )
    target, draft = require_models(files, files if own_head else draft_files)
    if options.mmproj is not None:
        from llama_eagle.vision.encoder import require_encoder  # imports NumPy

        require_encoder(options.mmproj, target, draft)
    _check_template(options, target)
    found = Checked(options, choice.options, choice.why, target, draft)
    generates = EMBEDDING.isdisjoint(map(normalized, options.extra))
    for problem in (found.shortened, without_text(target) if generates else None):
        if problem:
            console.warn(problem)
    if options.load.lora is not None:
        require_adapter(options.load.lora.path, files)
    require_servers(options.load, files, None if own_head else draft)
    if options.load.n_gpu_layers == 0:
        types = (CACHE_TYPES[options.context.type_k], CACHE_TYPES[options.context.type_v])
        memory = DraftContext(draft, choice.options.draft_n_ctx, options.parallel) if draft is not None else None
        keeps_all = "--swa-full" in map(normalized, options.extra)
        slots = None if keeps_all else Slots(options.parallel, options.context.n_ubatch)
        require_memory(target, found.n_ctx, *types, memory, slots)
    return found


def _drafter(options: ServerOptions) -> Choice[DraftingOptions]:
    """Choose the drafter. Prompt look-up that nobody asked for gives way to embeddings and to small batches.

    Raises `UsageError` if another drafter has no room in a batch.
    """
    choice = resolve(options.model, options.drafting)
    sizes = options.context.n_batch, options.context.n_ubatch
    problem = batch_too_small(*sizes, _longest(choice.options))
    if problem is None and not EMBEDDING.isdisjoint(map(normalized, options.extra)):
        problem = "the server computes embeddings"
    if problem is None:
        return choice
    choice = without_lookup(choice, options.drafting, problem)
    if too_small := batch_too_small(*sizes, _longest(choice.options)):
        raise UsageError(f"{too_small}. Raise --ubatch-size, or set a lower --n-draft")
    return choice


def _longest(drafts: DraftingOptions) -> int:
    """Return the longest draft of the server in tokens, 0 without a drafter."""
    return 0 if not drafts.drafts else drafts.n_draft_max if drafts.n_draft == "auto" else int(drafts.n_draft)


def _check_template(options: ServerOptions, target: Header) -> None:
    """Render the chat template once, within our limits: llama-server renders it before it listens, without limits.

    The cache records templates that passed. Raises `InputError`.
    """
    template = str(target.keys.get("tokenizer.chat_template") or "")
    if not template or any(argument.startswith("--chat-template") for argument in options.extra):
        return
    record = kept_json("checked", [WORKER, WORKER.with_name("template.py"), Path(__file__)], template)
    if record.is_file():
        return
    try:
        render(template, TEST_CHAT, target.path)
    finally:
        end_worker()
    with suppress(OSError, EnvironmentFailure):
        write_json(record, {})


def server_args(served: Checked) -> list[str]:
    """Return llama-server's command line."""
    options, context = served.options, served.options.context
    threads = str(n_threads(context.n_threads))
    given = {
        "--model": served.target.path, "--host": options.host, "--port": options.port, "--parallel": options.parallel,
        "--ctx-size": served.n_ctx, "--threads": threads, "--threads-batch": threads,
        # The batch is one micro-batch: if a prompt were split at other positions, its logits would have other bits.
        "--batch-size": context.n_ubatch, "--ubatch-size": context.n_ubatch,
        "--flash-attn": context.flash_attn, "--cache-type-k": context.type_k, "--cache-type-v": context.type_v,
        "--n-gpu-layers": _layers(options.load.n_gpu_layers),
        "--fit": "off", "--cors-origins": "localhost", "--cache-ram": options.cache_ram,
        "--log-verbosity": 4 if options.verbose else 3, "--log-colors": "off",
        "--alias": options.alias or served.target.path.stem,
    }  # fmt: skip
    flags = ["--no-kv-unified", "--metrics", "--offline"]
    if options.mmproj is not None:
        given["--mmproj"] = options.mmproj
    pairs = [str(part) for pair in given.items() for part in pair]
    if not build_info().has_page and not any(argument.split("=")[0] == "--path" for argument in options.extra):
        flags += ["--path", str(PLAIN_PAGE)]
    return [
        *pairs, *flags, *_device_args(options.load), *_drafting_args(served), *with_grammars(options.extra),
        *_end_token_args(served),
    ]  # fmt: skip


def _end_token_args(served: Checked) -> Iterator[str]:
    """Yield the change of a vocabulary that appends its end token to every text: a prompt is continued.

    After the user's own changes, because llama.cpp uses the first of a repeated key.
    """
    key, generates = "tokenizer.ggml.add_eos_token", EMBEDDING.isdisjoint(map(normalized, served.options.extra))
    if generates and any(each is not None and each.keys.get(key) for each in (served.target, served.draft)):
        yield from ("--override-kv", f"{key}=bool:false")


def server_env(served: Checked) -> dict[str, str]:
    """Return the environment of llama-server and our part of it; the key is here so that no process list shows it."""
    drafts = served.drafts
    found = {"LLAMA_API_KEY": served.options.api_key or "", "LLAMA_EAGLE_EXACT": "strict" if drafts.exact else ""}
    if not served.options.parse_special:
        found |= {"LLAMA_EAGLE_PARSE_SPECIAL": "0", "LLAMA_EAGLE_LITERAL_MARK": LITERAL_MARK}
    return {name: value for name, value in found.items() if value}


def _drafting_args(served: Checked) -> Iterator[str]:
    drafts, options = served.drafts, served.options
    kinds = list(_kinds(served))
    if not kinds or drafts.n_draft == 0:
        return
    yield from ("--spec-type", ",".join(kinds))
    yield from ("--spec-draft-n-max", str(_longest(drafts)), "--spec-draft-p-min", str(drafts.p_min))
    yield from ("--eagle-draft-length", "auto" if drafts.n_draft == "auto" else "fixed")
    if drafts.model is not None:
        n_vocab = session_options(served.draft, drafts).n_vocab_draft
        yield from ("--eagle-draft-ctx", str(drafts.draft_n_ctx), "--eagle-draft-vocab", str(n_vocab))
    if drafts.lookup_cache is not None:
        yield from ("--eagle-lookup-cache", str(drafts.lookup_cache))
    if drafts.draft_file is not None:
        layers = options.load.n_gpu_layers if drafts.draft_gpu_layers is None else drafts.draft_gpu_layers
        yield from ("--spec-draft-model", str(drafts.draft_file))
        yield from ("--spec-draft-ngl", _layers(layers))
        if options.load.rpc_servers:
            yield from ("--spec-draft-device", last_device(options.load))


def _device_args(load: LoadOptions) -> Iterator[str]:
    if load.rpc_servers:
        yield from ("--rpc", ",".join(load.rpc_servers))
    if load.lora is not None:
        yield from _adapter_args(load.lora)
    if load.tensor_split:
        yield from ("--tensor-split", ",".join(map(str, load.tensor_split)))


def _adapter_args(lora: Lora) -> tuple[str, str]:
    """Return the argument of an adapter. llama-server reads a list of files, which commas and quotes separate."""
    if lora.scale == 1:
        return "--lora", listed(str(lora.path))
    if ":" in str(lora.path):
        raise UsageError(f"lora {lora.path}: llama-server reads no scale after a name with a colon. Rename the file.")
    return "--lora-scaled", listed(f"{lora.path}:{lora.scale!r}")


def listed(value: str) -> str:
    """Return one entry of llama-server's lists."""
    return '"' + value.replace('"', '""') + '"' if {",", '"'} & {*value} else value


def _layers(n: int) -> str:
    return "all" if n < 0 else str(n)


def _kinds(served: Checked) -> Iterator[str]:
    if served.drafts.looks_up:
        yield "ngram-simple"
    if served.draft is None:
        return
    if served.draft.architecture in DRAFT_KINDS and served.draft.architecture != ASSISTANT:
        yield "draft-eagle3"
    else:
        # llama.cpp counts an assistant as an MTP head
        is_model = served.drafts.model != MTP and small.is_small(served.target, read_model(served.draft.path)[1])
        yield "draft-simple" if is_model else "draft-mtp"


# Types of the keys of a configuration file.
_DRAFTING: dict[str, Any] = {
    "draft_path": str | None,  # another name of draft
    **{each.name: kind | None for each in fields(DraftingOptions) if (kind := about(each.name).kind) is not None},
}
_CONTEXT: dict[str, Any] = {
    "type_k": str | None, "type_v": str | None, "n_ubatch": int | None,
    "n_threads": int | str | float | bool | list[Any] | None,  # checked by read_threads
}  # fmt: skip
_LOADING: dict[str, Any] = {
    "n_gpu_layers": int | None, "rpc_servers": str | list[str] | None, "tensor_split": list[float] | None,
}  # fmt: skip
_FIELDS: dict[str, Any] = {
    "host": str | None, "port": int | None, "api_key": str | None, "n_ctx": int | None, "parallel": int | None,
    "parse_special": bool | None, "verbose": bool | None, "cache_disk": str | None,
}  # fmt: skip
_MODEL: dict[str, Any] = {"model": str, "model_alias": str | None, "mmproj_path": str | None}
_CONFIG = {**_MODEL, **_FIELDS, **_DRAFTING, **_CONTEXT, **_LOADING}
CONFIG_KEYS = tuple(_CONFIG)


def from_config(path: Path, settings: Any, base: ServerOptions, kept: Collection[str] = ()) -> ServerOptions:
    """Return `base` with the changes of a configuration file, except for the keys in `kept`.

    Its form is {model, draft, n_ctx, host, ...}, or that of llama-cpp-python's server with one model. Raises
    `InputError` for an unknown key or a wrong value, `UsageError` for several models or values out of range.
    """
    try:
        is_foreign = isinstance(settings, dict) and "models" in settings
        found = typed(path, _imported(path, settings) if is_foreign else settings, _CONFIG)
        return _configured({key: each for key, each in found.items() if key not in kept}, base)
    except EagleError as error:
        if isinstance(error, UsageError):
            error.args = (f"{path}: {error}",)
        error.names_keys = True
        raise


def _given(entry: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are not null."""
    return {name: entry[name] for name in names if entry.get(name) is not None}


def _imported(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return llama-cpp-python's {host, ..., models: [{model, ...}]} in our form, and warn of keys that are dropped."""
    models = typed(path, settings, {"models": list[dict[str, Any]]}, others=True)["models"]
    if len(models) != 1:
        raise UsageError(f"the file names {len(models)} models, but a server serves one. Start one server per model.")
    found = {**settings, **models[0]}
    if dropped := found.keys() - {*_CONFIG, "models"}:
        console.warn(f"{path}: keys that have no effect here: {', '.join(sorted(map(str, dropped)))}.")
    return {key: each for key, each in found.items() if key in _CONFIG}


def _configured(entry: Mapping[str, Any], base: ServerOptions) -> ServerOptions:
    drafting, loading = _given(entry, _DRAFTING), _given(entry, _LOADING)
    if "draft_path" in drafting:
        drafting["draft"] = drafting.pop("draft_path")
    context = _given(entry, _CONTEXT)
    if "n_threads" in context:
        context["n_threads"] = read_threads(context["n_threads"])
        warn_excess(context["n_threads"], console.warn)
    loading["rpc_servers"] = read_servers(loading.get("rpc_servers", base.load.rpc_servers))
    mmproj = entry.get("mmproj_path") or base.mmproj
    fields = _given(entry, _FIELDS)
    if "cache_disk" in fields:
        fields["cache_disk"] = read_cache_disk(fields["cache_disk"])
    return replace(
        base,
        **fields,
        model=entry["model"],
        alias=entry.get("model_alias") or base.alias,
        mmproj=None if mmproj is None else Path(mmproj),
        drafting=replace(base.drafting, **drafting),
        context=replace(base.context, **context),
        load=replace(base.load, **loading),
    )
