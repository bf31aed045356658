"""A GGUF as the target: run by our engine in the quantization that will be used, so that a draft learns from what it
will draft for. Embedding, head and last norm are dequantized from the file; the draft alone runs in torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from llama_eagle.errors import ConfigError, InputError, NativeError
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.pairing import require_models
from llama_eagle.native.calls import last_error, library
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions
from llama_eagle.sessions.text import Tokenizer, chat_text
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.features import Batch, pad
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo, boundaries
from numpy.typing import NDArray
from torch import Tensor

# llama.cpp's name of an architecture, and that of transformers, which a draft's checkpoint records.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
    "qwen35moe": "Qwen3_5MoeForCausalLM",
}
CONTROL = 3  # LLAMA_TOKEN_TYPE_CONTROL
CHUNK = 512  # tokens of one decode


def is_gguf(target: str) -> bool:
    return target.endswith(".gguf")


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
    """Raises `InputError` for a file that is no sound target, `ConfigError` for one that no draft is trained for."""
    header = require_models(source)[0]
    architecture = ARCHITECTURES.get(header.architecture)
    if architecture is None:
        raise ConfigError(
            f"{source}: {header.architecture} is not a target drafts can be trained for; {', '.join(ARCHITECTURES)} "
            "are."
        )
    text = _configuration(header)
    ends = tuple(
        int(header.keys[key])
        for name in ("eos", "eot", "eom")
        if (key := f"tokenizer.ggml.{name}_token_id") in header.keys
    )
    found = boundaries(aux_layers, text.num_hidden_layers, has_vision=False)
    return EngineTargetInfo(header.path, architecture, text, found, ends, tuple(read_model(source)[1]))


def _configuration(header: Header) -> Any:
    def key(name: str, default: Any = None) -> Any:
        value = header.arch_key(name, default)
        value = max(value) if isinstance(value, list) else value
        return float(str(np.float32(value))) if isinstance(value, float) else value  # the file's F32 in few digits

    width, n_head = int(key("embedding_length")), int(key("attention.head_count"))
    n_mtp = int(key("nextn_predict_layers", 0))
    rope: dict[str, Any] = {"rope_theta": float(key("rope.freq_base", 10000.0))}
    if sections := header.arch_key("rope.dimension_sections"):
        rope |= {"mrope_section": [int(size) for size in sections[:3]], "mrope_interleaved": True}
    text = SimpleNamespace(
        hidden_size=width,
        num_attention_heads=n_head,
        num_key_value_heads=int(key("attention.head_count_kv", n_head)),
        head_dim=int(key("attention.key_length", width // n_head)),
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
    """The file's own tokenizer and chat template, with the calls of transformers' that training makes."""

    def __init__(self, info: EngineTargetInfo) -> None:
        self._model = Model(info.parts[0], LoadOptions(no_alloc=True))
        self._tokenizer = Tokenizer(self._model)
        keys = info.parts[0].keys
        self.chat_template = keys.get("tokenizer.chat_template")
        types = info.parts[0].value("tokenizer.ggml.token_type", [])
        self.all_special_ids = [token for token, kind in enumerate(types) if kind == CONTROL]
        self.added_tokens_decoder = {token: SimpleNamespace(special=True) for token in self.all_special_ids}

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self._tokenizer.encode(text, add_bos=add_special_tokens)}

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool = False, add_generation_prompt: bool = False
    ) -> str:
        return chat_text(self._model, messages, add_generation_prompt=add_generation_prompt)


class EngineTarget:
    """A loaded GGUF with a context for one sequence. cache_type: of K and V."""

    def __init__(self, info: EngineTargetInfo, max_length: int, cache_type: str = "f16", n_gpu_layers: int = 0) -> None:
        self.info = info
        self._model = Model(info.parts[0], LoadOptions(n_gpu_layers))
        options = ContextOptions(
            n_ctx=max_length + 1, n_batch=CHUNK, n_ubatch=CHUNK, type_k=cache_type, type_v=cache_type
        )
        self._context = Context(self._model, options)
        self._lib, self._api = library(), self._context._api
        self._api.llama_set_embeddings(self._context.handle, True)
        for boundary in info.aux_layers:
            if self._lib.eagle_capture_layer(ctypes.c_void_p(self._context.handle), boundary, ctypes.c_bool(True)):
                raise ConfigError(f"{info.folder}: boundary {boundary} cannot be captured: {last_error()}")

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def frozen(self) -> Frozen:
        parts = self.info.parts
        embedding = torch.from_numpy(_tensor(parts, "token_embd.weight"))
        head = torch.from_numpy(_tensor(parts, "output.weight")) if _has(parts, "output.weight") else embedding
        return Frozen(embedding, head, torch.from_numpy(_tensor(parts, "output_norm.weight")))

    def run(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(features [S, A * T], normed last hidden state [S, T]) of one sequence, float32.

        Raises `NativeError` when a decode fails.
        """
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context.handle), True)
        features, final = [], []
        for start in range(0, len(tokens), CHUNK):
            n = len(tokens[start : start + CHUNK])
            self._decode(tokens[start : start + n], start)
            layers = [self._rows(self._boundary(k), n) for k in self.info.aux_layers]
            features.append(np.concatenate([*layers, np.empty((n, 0), np.float32)], axis=1))
            final.append(self._rows(self._api.llama_get_embeddings(self._context.handle), n))
        return torch.from_numpy(np.concatenate(features)), torch.from_numpy(np.concatenate(final))

    def _decode(self, tokens: Sequence[int], start: int) -> None:
        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        try:
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), start + i, 1
                batch.seq_id[i][0], batch.logits[i] = 0, True
            batch.n_tokens = len(tokens)
            if code := self._api.llama_decode(self._context.handle, batch):
                raise NativeError(f"{self.info.folder}: llama_decode failed ({code}).", code=code, call="llama_decode")
        finally:
            self._api.llama_batch_free(batch)

    def _boundary(self, k: int) -> Any:
        get = self._lib.eagle_layer_rows
        get.restype = ctypes.POINTER(ctypes.c_float)
        return get(ctypes.c_void_p(self._context.handle), k)

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


def _has(parts: Sequence[Header], name: str) -> bool:
    return any(name in header.tensors for header in parts)


def _tensor(parts: Sequence[Header], name: str) -> NDArray[np.float32]:
    """A tensor in float32, NumPy order. Raises `InputError` where it is missing or of a type that gguf cannot read."""
    from gguf import GGMLQuantizationType, dequantize

    for header in parts:
        if (tensor := header.tensors.get(name)) is None:
            continue
        shape = tuple(reversed(tensor.shape))
        n_rows = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
        start = header.data_offset + tensor.offset
        rows = np.memmap(header.path, np.uint8, "r", start, (n_rows, (tensor.n_bytes or 0) // n_rows))
        try:
            found = dequantize(rows, GGMLQuantizationType(tensor.type_id))
        except NotImplementedError:
            raise InputError(f"{header.path}: {name} is {tensor.type_name}, which cannot be read here.") from None
        return np.array(found.reshape(shape), np.float32)
    raise InputError(f"{parts[0].path}: it has no {name}. Convert the model again.")
