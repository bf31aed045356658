"""A GGUF as the target: run by our engine in the quantization that will be used, so that a draft learns from what it
will draft for. Embedding, head and last norm are dequantized from the file; the draft alone runs in torch.
"""

from __future__ import annotations

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
from llama_eagle.errors import ConfigError, InputError, NativeError
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.tensors import read_rows
from llama_eagle.native.calls import as_tokens, last_error, library
from llama_eagle.sessions.devices import GPUS, devices_of_kind
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions
from llama_eagle.sessions.text import Tokenizer, chat_text
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.features import Batch, pad
from llama_eagle.train.targets.checkpoint import TEXT_TARGETS, Frozen, TargetInfo, boundaries
from numpy.typing import NDArray
from torch import Tensor

# llama.cpp's name of an architecture, and that of transformers, which a draft's checkpoint records.
ARCHITECTURES = {CONVERSIONS[name].arch: name for name in TEXT_TARGETS}
CONTROL = 3  # LLAMA_TOKEN_TYPE_CONTROL
CHUNK = 512  # tokens of one decode
MLP_NORMS = ("ffn_norm.weight", "post_attention_norm.weight")  # the second is that of the hybrids


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
    architecture = ARCHITECTURES.get(header.architecture)
    if architecture is None:
        raise ConfigError(
            f"{source}: {header.architecture} is not a target drafts can be trained for; {', '.join(ARCHITECTURES)} "
            "are."
        )
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

    width, n_head = int(key("embedding_length")), int(key("attention.head_count"))
    n_mtp = int(key("nextn_predict_layers", 0))
    head_dim = int(key("attention.key_length", width // n_head))
    rope: dict[str, Any] = {
        "rope_theta": float(key("rope.freq_base", 10000.0)),
        "partial_rotary_factor": int(key("rope.dimension_count", head_dim)) / head_dim,
    }
    if sections := header.arch_key("rope.dimension_sections"):
        rope |= {"mrope_section": [int(size) for size in sections[:3]], "mrope_interleaved": True}
    text = SimpleNamespace(
        hidden_size=width,
        num_attention_heads=n_head,
        num_key_value_heads=int(key("attention.head_count_kv", n_head)),
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
        self._lib, self._api = library(), self._context._api
        self._api.llama_set_embeddings(self._context.handle, True)
        for boundary in info.aux_layers:
            if self._lib.eagle_capture_layer(self._context.handle, boundary, True):
                raise ConfigError(f"{info.folder}: boundary {boundary} cannot be captured: {last_error()}")

    def frozen(self) -> Frozen:
        embedding = self._weights("token_embd.weight")
        is_tied = all("output.weight" not in header.tensors for header in self.info.parts)
        head = embedding if is_tied else self._weights("output.weight")
        return Frozen(embedding, head, self._weights("output_norm.weight").flatten(), *self._dense())

    def _dense(self) -> tuple[Tensor, ...]:
        """Return the fields of `Frozen` for the last block's MLP; none for one with experts."""
        block = f"blk.{self.info.text.num_hidden_layers - 1}."
        names = {name for header in self.info.parts for name in header.tensors}
        if f"{block}ffn_gate.weight" not in names:
            return ()
        norm = next(name for name in MLP_NORMS if f"{block}{name}" in names)
        matrices = (self._weights(f"{block}ffn_{name}.weight") for name in ("gate", "up", "down"))
        return self._weights(f"{block}{norm}").flatten(), *matrices

    def _weights(self, name: str) -> Tensor:
        """Read a tensor. Raises `InputError` if it is missing or has a type that gguf cannot read."""
        found = read_rows(self.info.parts, name)
        if found is None:
            raise InputError(f"{self.info.folder}: it has no {name}. Convert the model again.")
        return torch.tensor(found)

    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return features [S, A * T] and the normed last hidden state [S, T] of one sequence, float32.

        Raises `NativeError` if a decode fails.
        """
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context.handle), True)
        features, final = [], []
        for start in range(0, len(tokens), CHUNK):
            n = len(tokens[start : start + CHUNK])
            self._decode(tokens[start : start + n])
            layers = [self._rows(self._lib.eagle_layer_rows(self._context.handle, k), n) for k in self.info.aux_layers]
            features.append(np.concatenate([np.empty((n, 0), np.float32), *layers], axis=1))
            final.append(self._rows(self._api.llama_get_embeddings(self._context.handle), n))
        return torch.from_numpy(np.concatenate(features)), torch.from_numpy(np.concatenate(final))

    def _decode(self, tokens: Sequence[int]) -> None:
        """Decode a batch. With embeddings enabled, llama.cpp returns every row."""
        ids = as_tokens(tokens)  # the batch only points to them
        batch = self._api.llama_batch_get_one(ids, len(ids))
        if code := self._api.llama_decode(self._context.handle, batch):
            raise NativeError(f"{self.info.folder}: llama_decode failed ({code}).", code=code, call="llama_decode")

    def _rows(self, pointer: Any, n: int) -> NDArray[np.float32]:
        return np.ctypeslib.as_array(pointer, (n, self.info.text.hidden_size)).copy()


class EngineFeatures:
    """A FeatureSource that runs the engine on every batch, one sequence after another."""

    def __init__(
        self, target: EngineTarget, samples: Sequence[Sample], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.target, self.samples, self.dtype, self.device = target, samples, dtype, device

    def batch(self, numbers: Sequence[int]) -> Batch:
        samples = [self.samples[n] for n in numbers]
        found = [self.target.run(sample.tokens.tolist()) for sample in samples]
        return Batch(
            pad([torch.from_numpy(sample.tokens) for sample in samples]).long().to(self.device),
            pad([torch.from_numpy(sample.mask) for sample in samples]).to(self.device),
            pad([features for features, _ in found]).to(self.device, self.dtype),
            pad([final for _, final in found]).to(self.device, self.dtype),
        )
