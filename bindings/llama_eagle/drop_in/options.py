"""Options of `EagleLlama` in addition to those of `llama_cpp.Llama`, and checks of conflicts before loading."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from llama_eagle.arguments import CALLABLE, PATH, WHOLE, Types, allowed
from llama_eagle.drafting.options import AUTO, NONE, DraftingOptions
from llama_eagle.drafting.resolve import Choice, resolve, without_effect, without_lookup
from llama_eagle.errors import InputError, UsageError, refuse
from llama_eagle.gguf.header import Header, Source, read_model
from llama_eagle.gguf.pairing import RANK, read_draft, require_models, require_scores, without_text
from llama_eagle.gguf.rotation import beyond_training, trained_context
from llama_eagle.gguf.size import DraftContext, require_memory
from llama_eagle.gguf.validate import require_vocabulary
from llama_eagle.gguf.validate.adapters import require_adapter
from llama_eagle.gguf.validate.overrides import with_overrides
from llama_eagle.native.limits import MAX_CONTEXT
from llama_eagle.native.processor.threads import n_threads, read_threads, warn_excess
from llama_eagle.native.rpc import read_servers
from llama_eagle.sessions.devices import require_servers
from llama_eagle.sessions.options import CACHE_TYPES, MTP, ContextOptions, LoadOptions
from llama_eagle.store.find import NotFetched, is_name, prepare
from llama_eagle.vision.encoder import require_clip, require_encoder

PARENT_PARAMETERS = {
    name: parameter.default
    for name, parameter in inspect.signature(Llama.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
}
F16 = 1  # llama.cpp's number of the type
ENUMERATIONS = {  # llama.cpp asserts on some values outside of these ranges
    "split_mode": range(4),
    "rope_scaling_type": range(-1, 4),
    "pooling_type": range(-1, 5),
    "attention_type": range(-1, 2),
}
REALS = (
    "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    "lora_scale",
)  # fmt: skip


@dataclass(frozen=True)
class EagleOptions(DraftingOptions):
    """Options of `EagleLlama`: those of `DraftingOptions`, and the following.

    Raises `UsageError` for values out of range.

    draft_path: file of the draft, another name of `draft`.
    mmproj_path: vision encoder of the target, required for images in chats. Messages contain images as data URLs, as
        files below `image_folder`, and with `image_urls` as URLs of other machines.
    checkpoint_mib: memory for checkpoints of a recurrent state. checkpoint_every: tokens between them in a long prompt.
    rpc_servers: HOST:PORT,... or a list: RPC servers that hold a part of the target's layers.
    parse_replies: separate reasoning and tool calls from a chat's content; False: content contains all.
    parse_special: recognize control tokens such as <|im_end|> in prompts and messages, as llama.cpp does; False: they
        are text there, and only those of the chat template are control tokens.
    on_progress: called with "loading" or "prompt" and the finished fraction, 0..1.
    """

    draft_path: str | Path | None = None
    mmproj_path: str | Path | None = None
    image_folder: str | Path | None = None
    image_urls: bool = False
    checkpoint_mib: int = 256
    checkpoint_every: int = 1024
    rpc_servers: str | Sequence[str] | None = None
    parse_replies: bool = True
    parse_special: bool = True
    on_progress: Callable[[str, float], None] | None = None

    def __post_init__(self) -> None:
        if self.draft_path == AUTO:
            object.__setattr__(self, "draft_path", None)
        if self.draft_path is not None:
            if self.draft is not None and self.draft != self.draft_path:
                raise UsageError("draft and draft_path are the same option. Leave one out.")
            object.__setattr__(self, "draft", self.draft_path)
        super().__post_init__()
        object.__setattr__(self, "rpc_servers", read_servers(self.rpc_servers))
        refuse(
            {
                f"checkpoint_mib={self.checkpoint_mib} is negative": self.checkpoint_mib < 0,
                f"checkpoint_every={self.checkpoint_every} is below 1": self.checkpoint_every < 1,
            }
        )


def _has(value: Any, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


# n_threads is checked by `read_threads`.
PARENT_TYPES = Types(
    Llama.__init__,
    model_path=PATH,
    lora_path=PATH | None,
    lora_base=PATH | None,
    kv_overrides=allowed("a dict of keys and values", lambda value: isinstance(value, Mapping)) | None,
    n_threads=Any,
    n_threads_batch=Any,
    chat_handler=CALLABLE | None,
    draft_model=CALLABLE | None,
    tokenizer=allowed("a tokenizer of llama-cpp-python", lambda value: _has(value, "tokenize", "detokenize")) | None,
    seed=WHOLE | None,
    numa=WHOLE,
)
OPTION_TYPES = Types(
    EagleOptions,
    {"Drafter": Any},
    drafter=allowed("a drafter: see docs/eagle-llama.md", lambda value: _has(value, "begin", "draft", "accept")) | None,
    **dict.fromkeys(("draft", "draft_path", "lookup_cache", "mmproj_path", "image_folder"), PATH | None),
)
EAGLE_PARAMETERS = tuple(field.name for field in fields(EagleOptions))


def split_arguments(given: Mapping[str, Any]) -> tuple[EagleOptions, dict[str, Any]]:
    """Separate our arguments from the parent's.

    Raises `TypeError` for a misspelt one, which the parent would ignore.
    """
    for name in given:
        if name not in PARENT_PARAMETERS and name not in EAGLE_PARAMETERS:
            raise TypeError(f"EagleLlama.__init__() got an unexpected keyword argument {name!r}")
    PARENT_TYPES.check(given)
    OPTION_TYPES.check(given)
    ours = {name: value for name, value in given.items() if name in EAGLE_PARAMETERS}
    return EagleOptions(**ours), {name: value for name, value in given.items() if name not in ours}


def _refuse_values(given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for values that would end the process inside llama.cpp."""
    for name in ("n_threads", "n_threads_batch"):
        warn_excess(read_threads(given.get(name), name))
    for name in ("n_batch", "n_ubatch"):
        if not 0 <= given.get(name, 1) <= MAX_CONTEXT:
            raise UsageError(f"{name}={given[name]} is not in 0..{MAX_CONTEXT}. Correct it.")
    for name, values in ENUMERATIONS.items():
        if given.get(name) is not None and given[name] not in values:
            raise UsageError(f"{name}={given[name]} is not in {values[0]}..{values[-1]} (llama.cpp's). Correct it.")
    for name in REALS:
        if not math.isfinite(given.get(name) or 0.0):
            raise UsageError(f"{name}={given[name]} is not finite. Correct it.")
    for name in ("rope_freq_base", "rope_freq_scale"):
        if (given.get(name) or 0.0) < 0:
            raise UsageError(f"{name}={given[name]} is negative. Correct it.")
    for name in ("type_k", "type_v"):
        if given.get(name) is not None and given[name] not in CACHE_TYPES.values():
            known = ", ".join(f"{value} ({kind})" for kind, value in CACHE_TYPES.items())
            raise UsageError(f"{name}={given[name]} is not one of {known}. Correct it.")


def refuse_conflicts(options: EagleOptions, given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options that cannot work, with drafts or at all."""
    _refuse_values(given)
    if options.mmproj_path is not None:
        for name in ("chat_handler", "vocab_only", "embedding"):
            if given.get(name):
                raise UsageError(f"mmproj_path and {name} exclude each other. Leave one out.")
    if options.draft_file is not None and given.get("draft_model") is not None:
        raise UsageError("draft and draft_model exclude each other. Leave one out.")
    if not options.drafts and given.get("draft_model") is None:
        return
    for name in ("embedding", "vocab_only"):
        if given.get(name):
            raise UsageError(f"{name}=True does not work with a draft, because nothing is generated. Leave one out.")
    n_ctx = given.get("n_ctx", PARENT_PARAMETERS["n_ctx"])
    if 0 < n_ctx < 3:
        raise UsageError(f"n_ctx={n_ctx} is too small for a draft. Raise it to 3 or more, or leave the draft out.")
    longest = options.longest or options.n_draft_max
    smallest = min(longest + 2, n_ctx or longest + 2)
    for name in ("n_batch", "n_ubatch"):
        size = given.get(name, PARENT_PARAMETERS[name])
        if size < smallest:
            raise UsageError(
                f"{name}={size} is below {smallest}, the longest draft + 2. Raise it or lower n_draft_max."
            )


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check the arguments of `EagleLlama`, and the files that they name, before the target is there.

    Raises the errors of `split_arguments` and `refuse_conflicts`, and `InputError`.
    """
    options, others = split_arguments(given)
    refuse_conflicts(options, others)
    if options.draft_file is not None:
        read_draft(options.draft_file)
    if options.mmproj_path is not None:
        require_clip(Path(options.mmproj_path))


def find_model(model: str | os.PathLike[str], given: Mapping[str, Any], *, fetch: bool = True) -> str:
    """Return the path of a model for `EagleLlama`: a file or missing path unchanged, else what `prepare` finds for it.

    given: the arguments of `EagleLlama`. With `fetch`, they are checked before a download.
    """
    if not is_name(model):
        return os.fspath(model)
    check_arguments(given)
    with_draft = not given.get("vocab_only") and split_arguments(given)[0].draft is None
    try:
        return str(prepare(model, with_draft=with_draft, fetch=fetch))
    except NotFetched as error:
        error.args = (f"{error} (or EagleLlama.from_pretrained({os.fspath(model)!r}))",)
        raise


@dataclass(frozen=True)
class Loading:
    """Options to load. draft: header of the draft model, or the target's for its own head; None: no model drafts.

    n_trained: longest context that the target was trained with, in tokens; 0 if unknown, as with scaled positions.
    """

    options: EagleOptions
    why: str
    draft: Header | None = None
    n_trained: int = 0


def choose(model_path: str, options: EagleOptions, given: Mapping[str, Any]) -> Loading:
    """Choose the drafter and check all files and the memory for the context.

    With vocab_only, only the tokenizer is checked. A drafter that was chosen by default is dropped if it does not work;
    one that the caller named is refused. Raises `UsageError`, `InputError`, `IncompatibleModels` or
    `EnvironmentFailure`.
    """
    refuse_conflicts(options, given)
    if not os.path.exists(model_path):  # noqa: PTH110 (same call as in the parent class)
        raise InputError(f"Model path does not exist: {model_path}. Give the path of a .gguf file.")
    if given.get("vocab_only"):
        require_vocabulary(_read_target(model_path, given))
        return Loading(options, "no drafter: only a vocabulary is loaded")
    if given.get("draft_model") is not None:
        choice = Choice(options, "drafter: draft_model, as requested", model_path)
    else:
        choice = resolve(model_path, options)
        if problem := without_effect(choice.options):
            warnings.warn(f"{problem}.", stacklevel=5)
    if given.get("logits_all"):
        choice = without_lookup(choice, options, "logits_all=True evaluates prompts in rounds (draft=lookup drafts)")
    if choice.options is not options:
        try:
            refuse_conflicts(choice.options, given)
        except UsageError as error:
            choice = Choice(replace(options, draft=NONE), f"no drafter: {error}", choice.target)
    target, draft = _check_files(choice, given)
    return Loading(choice.options, choice.why, draft, 0 if _scales_positions(given) else trained_context(target))


def _check_files(choice: Choice[EagleOptions], given: Mapping[str, Any]) -> tuple[Header, Header | None]:
    """Check all files, and return the headers of target and draft."""
    files = _read_target(choice.target, given)
    target, draft = require_models(files, files if choice.draft == MTP else choice.draft)
    pooling = given.get("pooling_type", -1)
    if given.get("embedding") and (target.arch_key("pooling_type") if pooling == -1 else pooling) == RANK:
        require_scores(files, "give another pooling_type")
    if not given.get("embedding") and (problem := without_text(target)):
        warnings.warn(problem, stacklevel=5)
    if given.get("lora_path"):
        require_adapter(given["lora_path"], files)
    if given.get("lora_base"):
        warnings.warn("lora_base has no effect: llama.cpp applies an adapter to the loaded model.", stacklevel=5)
    if (encoder := getattr(given.get("chat_handler"), "clip_model_path", None)) is not None:
        require_clip(Path(encoder))
    if choice.options.mmproj_path is not None:
        require_encoder(Path(choice.options.mmproj_path), target, draft)
    load = load_options(given, choice.options)
    require_servers(load, files, None if choice.draft == MTP else draft)
    n_ctx = given.get("n_ctx", PARENT_PARAMETERS["n_ctx"]) or int(target.arch_key("context_length", 0))
    if load.n_gpu_layers == 0:
        types = (given.get(name) for name in ("type_k", "type_v"))
        memory = DraftContext(draft, choice.options.draft_n_ctx) if draft is not None else None
        type_k, type_v = (F16 if kind is None else kind for kind in types)
        require_memory(target, n_ctx, type_k, type_v, memory)
    if not _scales_positions(given) and (problem := beyond_training(target, n_ctx)):
        warnings.warn(problem, stacklevel=5)
    return target, draft


def _scales_positions(given: Mapping[str, Any]) -> bool:
    """Return True if the caller sets a RoPE scaling, which changes the context that the model can use."""
    return any(given.get(name) for name in ("rope_freq_base", "rope_freq_scale", "yarn_orig_ctx"))


def _read_target(source: Source, given: Mapping[str, Any]) -> list[Header]:
    return with_overrides(read_model(source)[1], given.get("kv_overrides"), "kv_overrides")


def with_our_defaults(given: Mapping[str, Any], options: EagleOptions) -> dict[str, Any]:
    """Return the parent's arguments, with equal threads for decode and batch, because a verification is both."""
    arguments = {**given, "n_gpu_layers": load_options(given, options).n_gpu_layers}
    decode, batch = (read_threads(given.get(name), name) for name in ("n_threads", "n_threads_batch"))
    arguments["n_threads"] = n_threads(decode or batch)
    arguments["n_threads_batch"] = n_threads(batch or decode)
    if arguments.get("n_ctx", 0) > 0:  # the parent allocates rows of logits for a whole batch
        arguments["n_batch"] = min(arguments.get("n_batch", PARENT_PARAMETERS["n_batch"]), arguments["n_ctx"])
    if arguments.get("embedding"):  # llama.cpp pools the tokens of one micro-batch, and aborts for longer texts
        n_batch, n_ubatch = (arguments.get(name, PARENT_PARAMETERS[name]) for name in ("n_batch", "n_ubatch"))
        arguments["n_ubatch"] = max(n_batch, n_ubatch)
    arguments.setdefault("verbose", False)
    arguments["flash_attn"] = bool(arguments.get("flash_attn"))
    arguments.pop("draft_model", None)
    arguments.pop("logits_all", None)
    arguments.pop("lora_path", None)  # EagleLlama applies it, because the parent does not check for a null pointer
    return arguments


def load_options(given: Mapping[str, Any], options: EagleOptions) -> LoadOptions:
    """Return the options with which the parent loads the target."""
    names = ("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "use_mmap", "use_mlock")
    found = {name: given[name] for name in names if given.get(name) is not None}
    return LoadOptions(**found, rpc_servers=tuple(options.rpc_servers or ()))


def from_options(drafting: DraftingOptions, context: ContextOptions, load: LoadOptions) -> dict[str, Any]:
    """Return the arguments of `EagleLlama` that are equivalent to the options of a session."""
    ours = {field.name: getattr(drafting, field.name) for field in fields(drafting)}
    threads = {"n_threads": context.n_threads, "n_threads_batch": context.n_threads}
    if context.flash_attn != "auto":
        threads["flash_attn"] = context.flash_attn == "on"
    return {
        **ours,
        **threads,
        "n_ctx": context.n_ctx,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "type_k": CACHE_TYPES[context.type_k],
        "type_v": CACHE_TYPES[context.type_v],
        "n_gpu_layers": load.n_gpu_layers,
        "rpc_servers": ",".join(load.rpc_servers) or None,
        "tensor_split": list(load.tensor_split) or None,
        **({} if load.lora is None else {"lora_path": load.lora.path, "lora_scale": load.lora.scale}),
    }
