"""Attributes of `llama_cpp.Llama` that are stored elsewhere: parameters, model, text and logits."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llama_eagle.native.calls import library

library()  # before llama_cpp is imported: it must load our build

import llama_cpp  # noqa: E402
from llama_cpp import Llama  # noqa: E402
from llama_cpp._internals import LlamaModel  # noqa: E402
from llama_cpp.llama_chat_format import guess_chat_format_from_gguf_metadata  # noqa: E402

from llama_eagle.drop_in.options import EagleOptions  # noqa: E402
from llama_eagle.drop_in.templates import KEY, handlers, is_template  # noqa: E402
from llama_eagle.errors import UsageError  # noqa: E402
from llama_eagle.generation.options import sampler_seed  # noqa: E402
from llama_eagle.sessions.devices import set_devices  # noqa: E402
from llama_eagle.sessions.models import progress_callback  # noqa: E402
from llama_eagle.sessions.options import MTP, LoadOptions  # noqa: E402
from llama_eagle.sessions.text import require_ids  # noqa: E402
from llama_eagle.sessions.text_memory import TextMemory  # noqa: E402
from llama_eagle.vision.in_text import cut_before  # noqa: E402


class _WhileOpen:
    """An attribute that native code would read after it was freed: on a closed instance it raises."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_open{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        instance._require_open()
        return getattr(instance, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self._name, value)


class CheckedModel(LlamaModel):
    """A model that refuses ids outside of its vocabulary, at which llama.cpp ends the process."""

    def token_get_text(self, token: int) -> str:
        return super().token_get_text(self._checked(token))

    def token_get_score(self, token: int) -> float:
        return super().token_get_score(self._checked(token))

    def token_get_attr(self, token: int) -> int:
        return super().token_get_attr(self._checked(token))

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        return super().token_to_piece(self._checked(token), special)

    def detokenize(self, tokens: list[int], special: bool = False) -> bytes:
        return super().detokenize([self._checked(token) for token in tokens], special)

    def _checked(self, token: int) -> int:
        require_ids((token,), self.n_vocab())
        return token


class _ContextParams(llama_cpp.llama_context_params):
    """Parameters whose fields that the parent does not know follow from those that it assigns."""

    has_flash_attn = True  # the caller decides on flash attention, not llama.cpp
    longest_draft: Callable[[int], int]  # by the number of tokens of the context

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "flash_attn_type" and not self.has_flash_attn:
            value = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        super().__setattr__(name, value)
        if name == "n_ctx":
            self.n_rs_seq = self.longest_draft(value)


class Attributes(Llama):
    """The base of `EagleLlama`. The constructor of llama_cpp.Llama sets these attributes and reads them again."""

    _options = EagleOptions()
    _memory: TextMemory | None = None
    _is_closed = False
    _flash_attn_given = False
    _logits_all = False
    _hides_templates = True
    _parent_arguments: dict[str, Any]

    @property
    def _seed(self) -> int:
        """The sampler's seed."""
        return self._sampler_seed

    @_seed.setter
    def _seed(self, seed: int) -> None:
        self._sampler_seed = sampler_seed(operator.index(seed))

    @property
    def context_params(self) -> Any:
        """The parent's parameters, with those that it does not know."""
        return self._context_params

    @context_params.setter
    def context_params(self, value: Any) -> None:
        self._context_params = _ContextParams.from_buffer_copy(value)
        self._context_params.has_flash_attn = self._flash_attn_given
        self._context_params.longest_draft = functools.partial(_fitting, self._longest)  # without self: no cycle

    @property
    def model_params(self) -> Any:
        """The parent's parameters, with those that it does not know."""
        return self._model_params

    @model_params.setter
    def model_params(self, value: Any) -> None:
        if self._options.rpc_servers:
            set_devices(value, LoadOptions(rpc_servers=self._options.rpc_servers))
        value.load_mtp = self._options.model == MTP
        value.progress_callback = self._on_load
        self._model_params = value

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata. Chat templates are hidden until their handlers are set, because the parent would run them."""
        shown = self._metadata
        return {key: shown[key] for key in shown if not is_template(key)} if self._hides_templates else shown

    @metadata.setter
    def metadata(self, value: dict[str, str]) -> None:
        self._metadata = value

    def _show_templates(self, chat_format: str | None) -> None:
        """Set the handlers of chat templates and the chat format, as the parent does. `chat_format`: the caller's."""
        self._hides_templates = False
        self._chat_handlers.update(handlers(self, self._metadata))
        if chat_format is None and self.chat_handler is None and KEY in self._metadata:
            self.chat_format = guess_chat_format_from_gguf_metadata(self._metadata) or "chat_template.default"

    _model = _WhileOpen()
    _ctx = _WhileOpen()

    def _before_edit(self) -> None:
        """End a running generation, which an edit of the text would make wrong."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens in memory. A lower value truncates the text. Setting it ends a running generation.

        A multimodal handler sets a higher value after it has put image rows into the context itself. With M-RoPE it
        then counts positions, as in the parent.
        """
        return 0 if self._memory is None else self._memory.n_tokens

    @n_tokens.setter
    def n_tokens(self, value: int) -> None:
        if self._memory is None:
            return
        self._before_edit()
        if 0 <= value <= self._memory.n_tokens:
            if cut_before(self._memory.known, value, self._memory.pictures) != value:
                raise UsageError(f"n_tokens={value} is within a picture. Cut the text before or after it.")
            self._memory.is_live = self._memory.is_live and value == self._memory.n_tokens
            self._memory.n_tokens = value
        else:
            self._memory.adopt(value)

    @property
    def input_ids(self) -> NDArray[np.intc]:
        return np.zeros(0, dtype=np.intc) if self._memory is None else self._memory.tokens

    @input_ids.setter
    def input_ids(self, value: NDArray[np.intc]) -> None:
        if self._memory is not None:
            self._before_edit()
            self._memory.tokens[: len(value)] = value[: len(self._memory.tokens)]

    @property
    def scores(self) -> NDArray[np.single]:
        """Logits [n_tokens, n_vocab] after each token with `logits_all`; otherwise [1, n_vocab], after the last one."""
        memory = self._memory
        if memory is not None and memory.rows is not None:
            return memory.rows
        if memory is None or not memory.is_live:
            return np.zeros((1, self._n_vocab), dtype=np.single)
        return memory.logits()[np.newaxis].copy()  # native code reuses its memory

    @scores.setter
    def scores(self, value: Any) -> None:
        """Drop the parent's array of n_batch x n_vocab floats."""

    @property
    def _scores(self) -> NDArray[np.single]:
        return self.scores[: self.n_tokens] if self._logits_all else self.scores

    def _keep_logits(self) -> None:
        """Keep the logits of every token from now on. The text in memory is evaluated again."""
        memory = self._require_memory()
        if memory.rows is None:
            self.reset()
            memory.rows = np.empty((self._n_ctx, self._n_vocab), dtype=np.single)
        self._logits_all = True

    @functools.cached_property
    def _on_load(self) -> Any:
        """The progress callback of llama.cpp, cached because llama.cpp holds no reference to it."""
        return progress_callback(llama_cpp, self._progress("loading"))

    def _progress(self, what: str) -> Callable[[float], None] | None:
        on_progress = self._options.on_progress
        return None if on_progress is None else functools.partial(on_progress, what)

    @property
    def _n_draft_max(self) -> int:
        """Maximum draft length that fits into the context; 0 without a drafter."""
        return _fitting(self._longest, self._context_params.n_ctx)

    @property
    def _longest(self) -> int:
        """Maximum draft length by the options."""
        longest = self._options.longest
        if self._parent_arguments.get("draft_model") is not None:
            longest = longest or self._options.n_draft_max
        return longest

    def _has_model(self) -> bool:
        return vars(self).get("_open_model") is not None

    def _mark_closed(self) -> None:
        self._is_closed = True
        if model := vars(self).pop("_open_model", None):
            model.tokenize = model.detokenize = _refuse  # the caller may have kept tokenizers

    def _require_open(self) -> None:
        if self._is_closed:
            _refuse()

    def _require_memory(self) -> TextMemory:
        if self._memory is None:
            raise UsageError("the model is closed or was loaded with vocab_only. Load it again.")
        return self._memory


def _fitting(longest: int, n_ctx: int) -> int:
    """Return the maximum draft length in a context of `n_ctx` tokens, 0: as the model was trained."""
    return min(longest, max((n_ctx or 1 << 30) - 2, 1))


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("this EagleLlama is closed. Load the model again.")
