"""Facts about a target that its draft needs: widths, layer count, tokenizer. From a checkpoint or a GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.general import publishable_name
from llama_eagle.convert.rope import parameters
from llama_eagle.convert.source import Checkpoint, open_checkpoint
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.source.storage import FLOAT_DTYPES
from llama_eagle.convert.tokenizer import read_tokenizer
from llama_eagle.convert.writer import GGUFOutput
from llama_eagle.errors import ConversionError, InputError
from llama_eagle.files import expand_home
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.mtp import n_layers
from llama_eagle.gguf.pairing import require_target
from llama_eagle.gguf.tensors import read_rows

HEADS = ("lm_head.weight", "language_model.lm_head.weight")
EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "embed_tokens.weight")

# model_type of config.json -> llama.cpp's name of the architecture.
MODEL_TYPES = {
    "gpt_oss": "gpt-oss",
    "mistral": "llama",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}


@dataclass(frozen=True)
class Target:
    """Facts about a target.

    name: publishable (no local path). architecture: llama.cpp's name, "" if unknown. hidden_size is T, n_layer L (text
    blocks without MTP layers), n_vocab V. uses_mrope: its positions have several components. head_rows: returns rows
    [n, T] of the output matrix as float32 for ids [n].
    """

    name: str
    architecture: str
    hidden_size: int
    n_layer: int
    n_vocab: int
    uses_mrope: bool
    write_tokenizer: Callable[[GGUFOutput], None]
    head_rows: Callable[[np.ndarray], np.ndarray]


def open_target(source: str | Path, *, pre: str | None = None, weights: bool = False) -> Target:
    """Return the facts about a target. source: a Hugging Face folder, a hub id, or the target's GGUF.

    pre: llama.cpp's name of the pre-tokenizer, instead of the detected one. weights: head_rows will be called.
    """
    path = expand_home(source)
    if path.suffix == ".gguf" or path.is_file():
        return _from_gguf(path)
    return _from_checkpoint(open_checkpoint(source, weights=weights), pre)


# --- from a GGUF ------------------------------------------------------------------------------------------------


def _from_gguf(path: Path) -> Target:
    header, parts = read_model(path)
    require_target(header)
    width = header.arch_key("embedding_length")
    if type(width) is not int or width <= 0 or n_layers(header) <= 0:
        raise ConversionError(f"{path}: its keys contain no hidden size or layer count; convert the target again")
    return Target(
        name=path.name,
        architecture=header.architecture,
        hidden_size=width,
        n_layer=n_layers(header),
        n_vocab=header.n_vocab,
        uses_mrope=header.arch_key("rope.dimension_sections") is not None,
        write_tokenizer=lambda out: _copy_tokenizer(header, out),
        head_rows=lambda ids: _gguf_rows(parts, ids),
    )


def _copy_tokenizer(header: Header, out: GGUFOutput) -> None:
    """Copy the tokenizer's keys of any kind; arrays byte by byte."""
    for name in header.keys:
        if name.startswith("tokenizer."):
            out.copy_key(header, name)


def _gguf_rows(parts: list[Header], ids: np.ndarray) -> np.ndarray:
    """Return rows of the output matrix, or of the embeddings if they are shared."""
    for name in ("output.weight", "token_embd.weight"):
        try:
            rows = read_rows(parts, name, ids)
        except InputError as error:
            raise ConversionError(str(error)) from None
        if rows is not None:
            return rows
    raise ConversionError(f"{parts[0].path}: contains neither output.weight nor token_embd.weight")


# --- from a checkpoint -------------------------------------------------------------------------------------------


def _from_checkpoint(checkpoint: Checkpoint, pre: str | None) -> Target:
    top = Fields(checkpoint.config, f"{checkpoint.source}: config.json")
    text = top.child("text_config") or top
    n_vocab = text.integer("vocab_size") or top.need_integer("vocab_size")
    model_type = (text.text("model_type") or top.text("model_type") or "").removesuffix("_text")
    tokenizer = read_tokenizer(checkpoint, n_vocab, pre=pre, force=True)  # texts are tokenized with the target's file
    return Target(
        name=publishable_name(checkpoint),
        architecture=MODEL_TYPES.get(model_type, model_type),
        hidden_size=text.need_integer("hidden_size"),
        n_layer=text.need_integer("num_hidden_layers"),
        n_vocab=n_vocab,
        uses_mrope=parameters(text)[0].get("mrope_section") is not None,
        write_tokenizer=tokenizer.write,
        head_rows=lambda ids: _checkpoint_rows(checkpoint, ids),
    )


def _checkpoint_rows(checkpoint: Checkpoint, ids: np.ndarray) -> np.ndarray:
    names = checkpoint.names()
    head = [name for name in names if re.fullmatch(r"(language_model\.)?lm_head\.(?!bias$).*", name)]
    name = next((name for name in (*HEADS, *head, *EMBEDDINGS) if name in names), None)
    if name is None:
        raise ConversionError(f"{checkpoint.source}: neither an output matrix nor embeddings; download again")
    if not name.endswith(".weight") or checkpoint.info(name).dtype not in FLOAT_DTYPES:
        raise ConversionError(f"{checkpoint.source}: {name} is quantized; convert the target and give its GGUF")
    return to_f32(checkpoint.read(name)[ids])
