"""A GGUF as the target: run by our engine in the quantization that will be used, so that a draft learns from what it
will draft for. Embedding, head and last norm are dequantized from the file; the draft alone runs in torch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from llama_eagle.convert.targets import CONVERSIONS
from llama_eagle.errors import ConfigError, NativeError
from llama_eagle.gguf.architectures import capture_problem, rollback_problem
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.pairing import require_models
from llama_eagle.native.calls import as_tokens, last_error, library
from llama_eagle.sessions.devices import GPUS, devices_of_kind
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions
from llama_eagle.sessions.text import Tokenizer, chat_text
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.features import Batch, pad
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo, boundaries
from llama_eagle.train.targets.output import EMBEDDING, Output
from numpy.typing import NDArray
from torch import Tensor

# llama.cpp's name of an architecture, and that of transformers, which a draft's checkpoint records if it is known.
ARCHITECTURES = {family.arch: name for name, family in CONVERSIONS.items() if name.endswith("ForCausalLM")}
CONTROL = 3  # LLAMA_TOKEN_TYPE_CONTROL
CHUNK = 512  # tokens of one decode
NO_LOGITS = {"lfm2", "lfm2moe"}  # where their graphs return states
NO_MLP = (None, None, None, None)
N_COMPARED = 64  # tokens whose logits are compared with the engine's
HEAD_SIZES = (128, 96, 80, 64)  # of a draft whose target's blocks have no heads that it could have


def is_gguf(target: str) -> bool:
    return target.endswith(".gguf")


def gpu_layers(is_allowed: bool) -> int:
    """Return `n_gpu_layers` for the target: all layers where a GPU may be used and the build has one."""
    return -1 if is_allowed and devices_of_kind(GPUS) else 0


@dataclass(frozen=True)
class EngineTargetInfo(TargetInfo):
    """`folder` is the file itself; `config` holds the names of transformers' configuration that training reads."""

    parts: tuple[Header, ...] = ()

    @property
    def has_vision(self) -> bool:
        return False  # images are an encoder's, in a file of its own

    @property
    def files(self) -> list[Path]:
        return [header.path for header in self.parts]


def read_engine_target(source: str, aux_layers: Sequence[int] | None = None) -> EngineTargetInfo:
    """Read the target's GGUF.

    Raises `InputError` for an invalid file, `ConfigError` for a target whose drafts cannot be trained.
    """
    header = require_models(source)[0]
    if problem := rollback_problem(header.architecture) or capture_problem(header.architecture):
        raise ConfigError(f"{source}: drafts for it cannot be trained: {problem}.")
    architecture = ARCHITECTURES.get(header.architecture, header.architecture)
    text = configuration(header)
    ends = tuple(
        int(header.keys[key])
        for name in ("eos", "eot", "eom")
        if (key := f"tokenizer.ggml.{name}_token_id") in header.keys
    )
    found = boundaries(aux_layers, text.num_hidden_layers, has_vision=False)
    return EngineTargetInfo(header.path, architecture, text, found, ends, tuple(read_model(source)[1]))


def configuration(header: Header) -> Any:
    """Return the configuration of a model's blocks by transformers' names, as far as training reads it."""

    def key(name: str, default: Any = None) -> Any:
        value = header.arch_key(name, default)
        value = max(value) if isinstance(value, list) else value
        return float(str(np.float32(value))) if isinstance(value, float) else value  # the file's F32 in few digits

    width, n_mtp = int(key("embedding_length")), int(key("nextn_predict_layers", 0))
    n_head, n_head_kv, head_dim = _heads(header, width)
    rope: dict[str, Any] = {
        "rope_theta": float(key("rope.freq_base", 10000.0)),
        "partial_rotary_factor": int(key("rope.dimension_count", head_dim)) / head_dim,
    }
    if sections := header.arch_key("rope.dimension_sections"):
        rope |= {"mrope_section": [int(size) for size in sections[:3]], "mrope_interleaved": True}
    text = SimpleNamespace(
        hidden_size=width,
        num_attention_heads=n_head,
        num_key_value_heads=n_head_kv,
        head_dim=head_dim,
        intermediate_size=int(key("feed_forward_length", 0)) or 3 * width,
        vocab_size=header.n_vocab,
        num_hidden_layers=int(key("block_count")) - n_mtp,
        max_position_embeddings=int(key("context_length")),
        rms_norm_eps=float(key("attention.layer_norm_rms_epsilon", 1e-6)),
        rope_parameters=rope,
    )
    text.get_text_config = lambda: text
    return text


def _heads(header: Header, width: int) -> tuple[int, int, int]:
    """Return the heads of attention, those of keys and values, and their size.

    They are those of the target's blocks if all blocks with attention have the same, with keys as long as values. Other
    targets (latent attention, heads by block, no heads) have drafts with heads of a usual size.
    """

    def values(name: str) -> set[int]:
        found = header.arch_key(f"attention.{name}", [])
        return {int(value) for value in (found if isinstance(found, list) else [found])} - {0}

    heads, groups = values("head_count"), values("head_count_kv") or values("head_count")
    sizes = {
        size for name in ("key", "value") for kind in ("", "_swa", "_mla") for size in values(f"{name}_length{kind}")
    }
    if len(heads) == len(groups) == 1 and len(sizes) <= 1:
        n_head, n_head_kv = heads.pop(), groups.pop()
        return n_head, n_head_kv, sizes.pop() if sizes else width // n_head
    size = next((size for size in HEAD_SIZES if width % size == 0), width)
    n_head = width // size
    return n_head, n_head // 4 if n_head % 4 == 0 else n_head, size


class EngineTokenizer:
    """The file's own tokenizer and chat template; same interface as `CheckpointTokenizer`."""

    def __init__(self, info: EngineTargetInfo) -> None:
        self._model = Model(info.parts[0], LoadOptions(no_alloc=True))
        weakref.finalize(self, self._model.close)
        self._tokenizer = Tokenizer(self._model)
        self.chat_template = info.parts[0].keys.get("tokenizer.chat_template")
        types = info.parts[0].value("tokenizer.ggml.token_type", [])
        self.control_ids = [token for token, kind in enumerate(types) if kind == CONTROL]

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=add_special)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokenizer.piece(token, special=True) for token in ids).decode("utf-8", "replace")

    def render(self, messages: Sequence[Mapping[str, Any]], *, is_prompt: bool, **variables: Any) -> str:
        return chat_text(self._model, messages, add_generation_prompt=is_prompt, **variables)


class EngineTarget:
    """A loaded GGUF with a context for one sequence, freed with the object. cache_type: of K and V."""

    def __init__(self, info: EngineTargetInfo, max_length: int, cache_type: str = "f16", n_gpu_layers: int = 0) -> None:
        self.info = info
        held = ExitStack()
        weakref.finalize(self, held.close)
        model = held.enter_context(Model(info.parts[0], LoadOptions(n_gpu_layers=n_gpu_layers)))
        options = ContextOptions(
            n_ctx=max_length + 1, n_batch=CHUNK, n_ubatch=CHUNK, type_k=cache_type, type_v=cache_type
        )
        self._context = held.enter_context(Context(model, options))
        self._require_states(model)
        self._lib, self._api, self._output = library(), self._context._api, Output.read(info.parts)
        self._has_logits = info.parts[0].architecture not in NO_LOGITS
        self._n_ctx, self._every = max_length, (ctypes.c_int8 * CHUNK)(*[1] * CHUNK)
        self._api.llama_set_embeddings(self._context.handle, True)
        for boundary in info.aux_layers:
            if self._lib.eagle_capture_layer(self._context.handle, boundary, True):
                raise ConfigError(f"{info.folder}: boundary {boundary} cannot be captured: {last_error()}")

    def _require_states(self, model: Model) -> None:
        """Raise ConfigError if llama.cpp returns other states than those before the head."""
        width, found = self.info.text.hidden_size, self._context._api.llama_model_n_embd_out(model.handle)
        if found != width:
            raise ConfigError(
                f"{self.info.folder}: drafts for it cannot be trained: its last states have {found} values in this "
                f"build, and its head takes {width}."
            )

    def frozen(self) -> Frozen:
        output = self._output
        embedding = output.tensor(EMBEDDING)
        head = embedding if output.head == EMBEDDING else output.tensor(output.head)
        norm, gate, up, down = output.mlp(self.info.text.num_hidden_layers - 1) or NO_MLP
        cap = torch.tensor(output.cap) if output.cap else None
        return Frozen(embedding, head, output.gain(), norm, gate, up, down, output.bias(), cap)

    def require_equal_logits(self) -> None:
        """Raise ConfigError if training would compute other logits than the engine from the states that it reads."""
        tokens = np.random.default_rng(1).integers(0, self.info.n_vocab, N_COMPARED).tolist()
        tokens = tokens[: self._n_ctx]

        def logits(rows: NDArray[np.int64]) -> Tensor:
            self._clear()
            self._api.llama_set_embeddings(self._context.handle, False)
            self._decode(tokens)
            self._api.llama_set_embeddings(self._context.handle, True)
            found = self._api.llama_get_logits(self._context.handle)
            return torch.from_numpy(self._rows(found, len(tokens), self.info.n_vocab)[:, rows])

        self._output.require_equal(self.run(tokens)[1], logits)

    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return features [S, A * T] and the normed and scaled last hidden state [S, T] of one sequence, float32.

        The third is the target's choice after each token, [S]; None if llama.cpp computes states or logits.

        Raises `NativeError` if a decode fails.
        """
        self._clear()
        features, final, best = [], [], []
        for start in range(0, len(tokens), CHUNK):
            n = len(tokens[start : start + CHUNK])
            self._decode(tokens[start : start + n])
            width, handle = self.info.text.hidden_size, self._context.handle
            layers = [self._rows(self._lib.eagle_layer_rows(handle, k), n, width) for k in self.info.aux_layers]
            features.append(np.concatenate([np.empty((n, 0), np.float32), *layers], axis=1))
            final.append(self._rows(self._api.llama_get_embeddings(handle), n, width))
            if self._has_logits:
                logits = np.ctypeslib.as_array(self._api.llama_get_logits(handle), (n, self.info.n_vocab))
                best.append(logits.argmax(axis=1))
        states = torch.from_numpy(np.concatenate(final)) * self._output.scale
        return (
            torch.from_numpy(np.concatenate(features)),
            states,
            torch.from_numpy(np.concatenate(best)) if best else None,
        )

    def _clear(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context.handle), True)

    def _decode(self, tokens: Sequence[int]) -> None:
        """Decode a batch with every row as an output."""
        ids = as_tokens(tokens)  # the batch only points to them
        batch = self._api.llama_batch_get_one(ids, len(ids))
        batch.logits = self._every
        if code := self._api.llama_decode(self._context.handle, batch):
            raise NativeError(f"{self.info.folder}: llama_decode failed ({code}).", code=code, call="llama_decode")

    def _rows(self, pointer: Any, n: int, width: int) -> NDArray[np.float32]:
        return np.ctypeslib.as_array(pointer, (n, width)).copy()


class EngineFeatures:
    """A FeatureSource that runs the engine on every batch, one sequence after another."""

    def __init__(
        self, target: EngineTarget, samples: Sequence[Sample], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.target, self.samples, self.dtype, self.device = target, samples, dtype, device

    def batch(self, numbers: Sequence[int]) -> Batch:
        samples = [self.samples[n] for n in numbers]
        features, final, best = zip(*(self.target.run(sample.tokens.tolist()) for sample in samples), strict=True)
        return Batch(
            pad([torch.from_numpy(sample.tokens) for sample in samples]).long().to(self.device),
            pad([torch.from_numpy(sample.mask) for sample in samples]).to(self.device),
            pad(features).to(self.device, self.dtype),
            pad(final).to(self.device, self.dtype),
            best=None if best[0] is None else pad(best).to(self.device),
        )
