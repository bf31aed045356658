"""`EagleLlama`: llama_cpp.Llama with speculative decoding. All methods of the parent work."""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
import weakref
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle import console
from llama_eagle.arguments import require_text
from llama_eagle.native import callbacks, calls, log, rpc
from llama_eagle.native.calls import library

library()  # before llama_cpp is imported: it must load our build

import llama_cpp  # noqa: E402
from llama_cpp import Llama, LlamaState  # noqa: E402
from llama_cpp.llama_tokenizer import LlamaTokenizer  # noqa: E402

from llama_eagle.drafting.choose import choose_drafters, combine, expected_times, save_lookups  # noqa: E402
from llama_eagle.drafting.lookup import PromptLookup  # noqa: E402
from llama_eagle.drafting.resolve import session_options  # noqa: E402
from llama_eagle.drop_in.answers import embeddings  # noqa: E402
from llama_eagle.drop_in.answers.types import GENERATION  # noqa: E402
from llama_eagle.drop_in.attributes import CheckedModel  # noqa: E402
from llama_eagle.drop_in.completions import Completions  # noqa: E402
from llama_eagle.drop_in.images import ImageReader  # noqa: E402
from llama_eagle.drop_in.measures import Measures  # noqa: E402
from llama_eagle.drop_in.options import (  # noqa: E402
    PARENT_TYPES,
    check_arguments,
    choose,
    find_model,
    load_options,
    split_arguments,
    with_our_defaults,
)
from llama_eagle.drop_in.parts import (  # noqa: E402
    ContextView,
    ModelView,
    require_grammar,
    with_llama_cpp_reason,
)
from llama_eagle.drop_in.state import capture_state, restore_state, row_settings  # noqa: E402
from llama_eagle.drop_in.text import GrowingText  # noqa: E402
from llama_eagle.errors import InputError, UsageError  # noqa: E402
from llama_eagle.generation.generate import plain_ms  # noqa: E402
from llama_eagle.generation.rejection import Chain, RejectionSampling  # noqa: E402
from llama_eagle.generation.rounds import Plan, Rounds  # noqa: E402
from llama_eagle.generation.stats import Statistics, learn_acceptance  # noqa: E402
from llama_eagle.hub import download  # noqa: E402
from llama_eagle.native.closing import Closing, OneThread  # noqa: E402
from llama_eagle.native.limits import MAX_EXACT_DRAFT  # noqa: E402
from llama_eagle.sessions import exact as exact_mode  # noqa: E402
from llama_eagle.sessions.checkpoints import CheckpointStore  # noqa: E402
from llama_eagle.sessions.devices import draft_options  # noqa: E402
from llama_eagle.sessions.models import Model, check_rollback, load_adapter, set_adapter  # noqa: E402
from llama_eagle.sessions.options import MTP, Lora  # noqa: E402
from llama_eagle.sessions.session import DraftLike, EagleSession  # noqa: E402
from llama_eagle.sessions.text import Tokenizer, read_ids  # noqa: E402
from llama_eagle.sessions.text_memory import TextMemory  # noqa: E402
from llama_eagle.vision.encoder import VisionEncoder  # noqa: E402
from llama_eagle.vision.in_text import PicturesInText, with_markers  # noqa: E402
from llama_eagle.vision.pictures import Sources  # noqa: E402

GENERATE = inspect.signature(Llama.generate)
FILTER_ARGUMENTS = ("temp", "top_k", "top_p", "min_p", "typical_p")
INIT_SAMPLER = inspect.signature(Llama._init_sampler)
SAMPLER_ARGUMENTS = set(INIT_SAMPLER.parameters) - {"self"}


class EagleLlama(Completions, Closing):
    """A drop-in `llama_cpp.Llama` with speculative decoding.

    It takes the parent's arguments and those of `EagleOptions`, such as `draft_path`. `model_path` may also be what
    `llama-eagle run` takes: a folder, a hub id (OWNER/NAME, OWNER/NAME-GGUF:TYPE), or a name in the cache. What is
    missing is downloaded and converted on a terminal only; `from_pretrained` always does that.

    Differences from the parent: unknown keyword arguments are refused; `verbose` is off by default; decode and batch
    use the same number of threads unless both are given; llama.cpp decides on `flash_attn` unless it is given. Only one
    thread at a time may use an instance.
    """

    def __init__(self, model_path: str | PathLike[str], **arguments: Any) -> None:
        self._load(model_path, arguments)

    def _load(self, model_path: str | PathLike[str], arguments: dict[str, Any]) -> None:
        self._stack = contextlib.ExitStack()  # from here on close() works, even if the constructor fails
        PARENT_TYPES.check({"model_path": model_path})
        given, parent = split_arguments(arguments)
        model_path = find_model(model_path, arguments, fetch=console.on_terminal())
        self._choice = choose(model_path, given, parent)
        self._options = self._choice.options
        self._parent_arguments = parent
        self._flash_attn_given = parent.get("flash_attn") is not None
        log.set_verbose(parent.get("verbose", False))
        self._one_thread = OneThread("EagleLlama")
        self._hides_templates = True
        self._measures = Measures()
        self._session_options = session_options(self._choice.draft, self._options)
        if self._options.exact:
            exact_mode.set_mode("strict")
        with callbacks.held(), with_llama_cpp_reason(self._has_model):
            super().__init__(model_path, **with_our_defaults(parent, given))
        # The garbage collector would call `__del__` of model, context and self in any order.
        weakref.finalize(self, self._stack.close).atexit = False
        self._model.__class__ = CheckedModel  # the parent's constructor names its own
        try:
            self._show_templates(parent.get("chat_format"))
            if not parent.get("vocab_only"):
                self._bind(parent)
        except BaseException:
            self.close()
            raise

    def _bind(self, given: dict[str, Any]) -> None:
        """Create draft, session and text memory on the parent's context."""
        options = self._options
        self._apply_adapter(given.get("lora_path"))
        self.draft_model = given.get("draft_model")
        self._logits_all = bool(given.get("logits_all", False))
        if options.exact and (unverified := exact_mode.require(ModelView(self._model.model, Path(self.model_path)))):
            warnings.warn(unverified, stacklevel=4)
        recurrent = bool(self._is_recurrent or self._is_hybrid)
        n_draft_max = self._n_draft_max
        check_rollback(self._ctx.ctx, recurrent, n_draft_max)
        view = ContextView(self._ctx.ctx, Path(self.model_path), self._n_ctx, self.n_batch, self._choice.n_trained)
        draft = self._load_draft(given)
        self._session = EagleSession(view, draft, replace(self._session_options, n_draft_max=n_draft_max))
        self._stack.callback(self._session.close)
        if self._session.draft_notice:
            warnings.warn(self._session.draft_notice, stacklevel=4)
        self._drafters = choose_drafters(self._session, options, self.draft_model)
        lookups = [each for each in self._drafters if isinstance(each, PromptLookup)]  # a given drafter may hold self
        self._stack.callback(save_lookups, lookups)
        self.set_n_draft(options.n_draft if n_draft_max else "auto")
        store = CheckpointStore(options.checkpoint_mib << 20 if recurrent else 0)
        pictures = self._open_pictures(int(given.get("n_gpu_layers", 0)))
        self._memory = TextMemory(self._session, self._n_vocab, store, options.checkpoint_every, pictures)
        self._memory.on_progress = self._progress("prompt")
        if self._logits_all:
            self._keep_logits()
        has_images = pictures is not None or self.chat_handler is not None
        self._growing = GrowingText(Tokenizer(self._model), self.token_bos(), has_images=has_images)

    def _apply_adapter(self, path: str | PathLike[str] | None) -> None:
        if path:
            self.lora_path = fspath(path)
            lora = Lora(Path(self.lora_path), self.lora_scale)
            set_adapter(self._ctx.ctx, load_adapter(self._model.model, lora.path), lora)  # freed with the model

    def _load_draft(self, given: dict[str, Any]) -> DraftLike | None:
        options = self._options
        if options.model == MTP:
            return ModelView(self._model.model, Path(self.model_path))
        if self._choice.draft is None:
            return None
        load = draft_options(self._model.model, load_options(given, options), options.draft_gpu_layers)
        draft = Model(self._choice.draft, replace(load, on_progress=self._progress("loading")))
        self._stack.callback(draft.close)
        return draft

    def _open_pictures(self, gpu_layers: int) -> PicturesInText | None:
        options = self._options
        if options.mmproj_path is None:
            return None
        path = Path(options.mmproj_path)
        encoder = VisionEncoder(path, self._model.model, n_threads=self.n_threads_batch, use_gpu=gpu_layers != 0)
        self._stack.callback(encoder.close)
        pictures = PicturesInText(encoder)
        folder = None if options.image_folder is None else Path(options.image_folder)
        self._images = ImageReader(pictures, Sources(folder, options.image_urls))
        return pictures

    # --- evaluation and generation ---

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens after those in memory.

        Raises `InputError`, without evaluating any, if they do not fit or one is outside of the vocabulary.
        """
        tokens = read_ids(tokens)
        with self._exclusive():
            self._end_generation()
            memory = self._require_memory()
            room = self._n_ctx - memory.n_tokens
            if len(tokens) > room:
                raise InputError(f"{len(tokens)} tokens to evaluate, {room} fit into the context. {self.longer_text}")
            memory.extend(tokens)

    def reset(self) -> None:
        """Clear the memory. If an RPC server has died, load the models again; the server must be running."""
        if not self._is_closed and calls.lost_server(self._ctx.ctx):
            rpc.query(*self._options.rpc_servers or ())  # if it raises, nothing has changed: a later call may succeed
            arguments, cache, n_draft = self.__getstate__(), self.cache, self._n_draft
            self.close()
            self._is_closed = False
            self._load(arguments.pop("model_path"), arguments)
            self.set_cache(cache)
            self.set_n_draft(n_draft)
        elif self._memory is not None:
            with self._exclusive():
                self._end_generation()
                self._memory.reset()

    def sample(self, *args: Any, idx: int | None = None, **kwargs: Any) -> int:
        """Sample a token after the text in memory, as the parent does. `idx` must be that of the last token.

        Raises `UsageError` for another `idx`, and if there is no text.
        """
        memory = self._require_memory()
        if not memory.n_tokens:
            raise UsageError("there is no text to continue. Call eval first.")
        if idx not in (None, memory.n_tokens - 1):
            raise UsageError(
                f"idx={idx}: only the last token's row, {memory.n_tokens - 1}, is available. Leave it out."
            )
        if memory.needs_eval(()):  # after a truncation, or a loaded state
            memory.set_tokens(memory.known.tolist())
        sampler = self._sampler or self._init_sampler(*args, **kwargs)
        return calls.sample(self._ctx.ctx, sampler.sampler, memory.row)

    def embed(
        self, input: str | list[str], normalize: bool = False, truncate: bool = True, return_count: bool = False
    ) -> Any:
        """Return the vector of a text, or of each text of a list.

        With pooling "none" it is a list of the tokens' vectors, and with "rank" the scores of a reranking model.
        truncate: cut texts that are longer than a batch. return_count: also return the number of tokens. Raises
        `UsageError` for values that are no texts, and `InputError` for a text without tokens.
        """
        rows = embeddings.read_texts(self, input, truncate=truncate)
        if not self.context_params.embeddings:
            raise RuntimeError("Llama model must be created with embedding=True to call this method")
        with self._exclusive():
            self._end_generation()
            try:
                found = embeddings.embed(self, rows, normalize=normalize)
            finally:  # the text in memory was replaced
                if self._memory is not None:
                    self._memory.reset()
        output = found[0] if isinstance(input, str) else found
        return (output, sum(map(len, rows))) if return_count else output

    def _init_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Create the parent's sampler after checking the grammar. Errors of logits processors reach the caller."""
        given = INIT_SAMPLER.bind(self, *args, **kwargs).arguments
        GENERATION.check(given)
        require_grammar(self._model.vocab, given.get("grammar"))
        sampler = super()._init_sampler(*args, **kwargs)
        for _, custom in sampler.custom_samplers:
            custom.apply_func = callbacks.guarded(custom.apply_func)
        return sampler

    def generate(self, tokens: Sequence[int], *args: Any, **kwargs: Any) -> Generator[int, Sequence[int] | None, None]:
        """Yield tokens after `tokens`, as the parent does.

        Drafts change how many are computed at once, not their values.
        """
        call = GENERATE.bind(self, tokens, *args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        GENERATION.check(arguments)
        with self._exclusive():
            rounds = self._begin(read_ids(tokens), arguments)
        try:
            while True:
                with self._exclusive(rounds):
                    token = rounds.next_token()
                criteria = arguments["stopping_criteria"]
                self._context_is_full = token is None
                if token is None or (criteria is not None and criteria(self._input_ids, self._scores[-1, :])):
                    return
                with self._measures.caller():
                    inserted = yield token
                with self._exclusive(rounds):
                    rounds.advance(token, inserted or ())
        finally:
            if self._generation is rounds:
                self._end_generation()

    def _begin(self, tokens: list[int], arguments: dict[str, Any]) -> Rounds:
        self._end_generation()
        memory = self._require_memory()
        sampler: Any = self._init_sampler(**{name: arguments[name] for name in SAMPLER_ARGUMENTS & arguments.keys()})
        self._sampler = sampler
        if memory.pictures is not None:
            memory.pictures.keep(memory.known, tokens)
        start = time.perf_counter()
        if arguments["reset"] or memory.needs_eval(tokens):
            n_evaluated = memory.set_tokens(tokens if arguments["reset"] else memory.known.tolist())
        else:
            memory.extend(tokens)
            n_evaluated = len(tokens)
        prompt_ms = (time.perf_counter() - start) * 1e3
        self._measures.begin(len(tokens), n_evaluated, prompt_ms, self._session.timings)
        limits, p_min = self._take_limits(self._drafters)
        rejection = self._rejection(sampler, arguments, p_min)
        plan = Plan(sampler.sampler, rejection or self._drafter, self._length, rejection)
        plan.n_draft_max, plan.n_draft_min = limits.n_max, limits.n_min
        self._generation = Rounds(memory, plan)
        return self._generation

    def _rejection(self, sampler: Any, arguments: dict[str, Any], p_min: float) -> RejectionSampling | None:
        """Return the sampler of drafts with the caller's filters, without penalties; None if drafts are matched."""
        if self._options.draft_sampling != "rejection" or arguments["temp"] == 0:
            return None
        if arguments["mirostat_mode"]:
            raise UsageError("mirostat depends on its own samples. Use draft_sampling='match' with it.")
        draft_ids = self._session.draft_ids
        self._filters: Any = self._init_sampler(**{name: arguments[name] for name in FILTER_ARGUMENTS})
        draft = Chain(self._filters.sampler, draft_ids)
        target = Chain(sampler.sampler, np.arange(self._n_vocab, dtype=np.int32))
        seed = self._seed & 0xFFFFFFFF  # as llama.cpp reads it: -1 is random
        is_random = seed == llama_cpp.LLAMA_DEFAULT_SEED
        return RejectionSampling(self._session, p_min, target, draft, None if is_random else seed)

    @property
    def speculative_stats(self) -> Statistics:
        """Statistics of the last generation: rounds, n_drafted, n_accepted, accept_rate, mean_emitted, ms by phase."""
        return self._measures.last

    @property
    def longer_text(self) -> str:
        """Remedy for a text that is longer than the context: shorten it, or use a larger n_ctx where that helps."""
        return self._require_memory().session.longer_text

    @property
    def drafter(self) -> str:
        """The chosen drafter and the reason, in one sentence."""
        return self._choice.why

    @property
    def draft_device(self) -> str | None:
        """ggml's name of the device that runs the draft model; None without one."""
        return self._session.draft_device

    @property
    def speculative_totals(self) -> Statistics:
        """Statistics of all generations of this instance."""
        return self._measures.total

    def keep_acceptance(self) -> None:
        """Keep the draft model's acceptance in the cache: the automatic choice of a drafter uses it from then on.

        `generate` and `chat` do this by themselves. Call it once, before `close`.
        """
        if self.lora_path:  # of another text
            return
        pair = Path(self.model_path), self._options.draft_file
        learn_acceptance(self.speculative_totals, self._session.draft_kind, *pair)

    @property
    def last_token_was_drafted(self) -> bool:
        """True if the last delivered token of a running generation had been drafted."""
        return self._generation is not None and self._generation.was_drafted

    def measure_plain(self) -> float | None:
        """Measure the time per token without drafts, in ms. Returns None without a text, room or draft."""
        memory = self._require_memory()
        if not self._session.n_draft_max:  # a decode cannot be undone
            return None
        with self._exclusive():
            self._end_generation()
            memory.restore()
            took = plain_ms(self._session, memory.known.tolist())
            memory.is_live = False  # the logits after the text are lost
        return took

    def set_n_draft(self, n_draft: int | str) -> None:
        """Set the draft length from the next generation on: a number of tokens up to `n_draft_max`, or "auto"."""
        longest = self._session.n_draft_max
        longest = min(longest, MAX_EXACT_DRAFT) if self._options.exact else longest
        sampled = self._options.draft_sampling == "rejection"
        expected = expected_times(self._session)
        self._drafter, self._length = combine(self._drafters, n_draft, longest, expected, sampled=sampled)
        self._n_draft = n_draft

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Tokenize bytes, as the parent does. Raises `UsageError` for other types."""
        self._require_open()
        if not isinstance(text, bytes):
            raise UsageError(f"text={text!r:.60} must be bytes, such as text.encode(). Correct it.")
        return super().tokenize(text, add_bos, special)

    def tokenize_images(self, prompt: str, images: Sequence[bytes | str | PathLike[str]]) -> list[int]:
        """Return ids for `create_completion` and `generate`, with images at the markers `<__media__>`.

        `images`: file names, or contents of files. Without a marker they precede the prompt. A row of an image is a
        negative id. Raises `InputError` or `UsageError` for images that cannot be read, or whose number differs from
        the markers'.
        """
        pictures = self._require_memory().pictures
        if pictures is None:
            raise UsageError("the model was loaded without mmproj_path, so it reads no images. Load it with one.")
        require_text("prompt", prompt)
        if isinstance(images, str | bytes) or not isinstance(images, Iterable):
            raise UsageError(f"images={images!r:.60} must be a list of file names or contents. Correct it.")
        found = [pictures.open(image, f"image {n}") for n, image in enumerate(images, start=1)]
        special = Tokenizer(self._model)
        return pictures.insert(with_markers(prompt, len(found)), found, special.encode_piece)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of tokens, as the parent does. A text that grows by one token costs one token."""
        self._require_open()
        if type(self.tokenizer_) is not LlamaTokenizer or self._memory is None:
            return super().detokenize(list(tokens), None if prev_tokens is None else list(prev_tokens), special)
        return self._growing.detokenize(tokens, special=special)

    # --- state ---

    def save_state(self) -> LlamaState:
        """Return the text, both memories and the seed; logits only with `logits_all`."""
        memory = self._require_memory()
        with self._exclusive():
            self._end_generation()
            return capture_state(memory, self._seed, row_settings(self))

    def load_state(self, state: LlamaState) -> None:
        """Continue from a saved state. With a state of the parent's class, the draft has no state for the text."""
        memory = self._require_memory()
        with self._exclusive():
            self._end_generation()
            restore_state(memory, state, row_settings(self))
            self._seed = state.seed

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if not self._flash_attn_given:
            del state["flash_attn"]
        return {**state, "tokenizer": self._parent_arguments.get("tokenizer"), **vars(self._options)}

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: list[str] | None = None,
        local_dir: str | PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | PathLike[str] | None = None,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        **kwargs: Any,
    ) -> EagleLlama:
        """Download target and draft from the Hugging Face hub. File names may be patterns that match one file.

        Without `filename`, and without a folder for the download, `repo_id` is any model that `llama-eagle run` takes:
        a checkpoint is converted once and kept in the cache, and a published draft is fetched if no draft is named.
        `local_dir_use_symlinks` has no effect: the hub's client no longer supports it, so the parent's method fails
        with it.
        """
        check_arguments(kwargs)
        where = {"local_dir": local_dir, "cache_dir": cache_dir}
        by_name = filename is None and local_dir is None and cache_dir is None
        if draft_repo_id is not None:
            kwargs["draft_path"] = download(draft_repo_id, draft_filename, **where)
        for name in additional_files or ():
            download(repo_id, name, **where)
        target = find_model(repo_id, kwargs) if by_name else download(repo_id, filename, **where)
        return cls(target, **kwargs)

    def close(self) -> None:
        """Free models and memories. An unfinished generation cannot continue.

        Raises `RuntimeError` while another thread uses this instance.
        """
        if "_stack" not in vars(self):  # the constructor's arguments were refused
            return
        with self._one_thread.entered() if hasattr(self, "_one_thread") else contextlib.nullcontext():
            self._generation = None
            self._memory = None
            super().close()
            self._mark_closed()

    # --- inside ---

    def _before_edit(self) -> None:
        if self._generation is not None:
            with self._exclusive():
                self._end_generation()

    def _end_generation(self) -> None:
        """Commit the delivered part of the pending round, and record the generation's measures."""
        rounds, self._generation = self._generation, None
        if rounds is not None:
            try:
                rounds.finish(stopped=True)
            finally:
                self._measures.finish(rounds, self._session.timings)
