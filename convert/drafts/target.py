"""What a draft takes from its target: widths, layer count, tokenizer. From a checkpoint or from the target's GGUF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llama_eagle.convert.checkpoint import Checkpoint, open_checkpoint
from llama_eagle.convert.drafts.architectures import MODEL_TYPES
from llama_eagle.convert.drafts.config import Fields
from llama_eagle.convert.gguf_file import GGUFFile
from llama_eagle.convert.storage import to_f32
from llama_eagle.convert.tokenizer import read_tokenizer
from llama_eagle.convert.writer import GGUFOutput
from llama_eagle.errors import ConversionError

HEADS = ("lm_head.weight", "language_model.lm_head.weight")
EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "embed_tokens.weight")


@dataclass(frozen=True)
class Target:
    """name: as it may be published (no local path). architecture: llama.cpp's name, "" when it is not known.

    hidden_size is T, n_layer L (text blocks, MTP layers not counted), n_vocab V. head_rows gives rows [n, T] of the
    output matrix as float32 for ids [n].
    """

    name: str
    architecture: str
    hidden_size: int
    n_layer: int
    n_vocab: int
    write_tokenizer: Callable[[GGUFOutput], None]
    head_rows: Callable[[np.ndarray], np.ndarray]


def open_target(source: str | Path, *, pre: str | None = None, weights: bool = False) -> Target:
    """source: a Hugging Face folder, a hub id, or the target's GGUF.

    pre: llama.cpp's name of the pre-tokenizer, instead of the one found. weights: head_rows will be called.
    """
    path = Path(source).expanduser()
    if path.suffix == ".gguf" or path.is_file():
        return _from_gguf(GGUFFile(path))
    return _from_checkpoint(open_checkpoint(source, weights=weights), pre)


def _from_gguf(file: GGUFFile) -> Target:
    def number(name: str) -> int:
        value = file.arch_key(name)
        if type(value) is not int or value <= 0:
            raise ConversionError(f"{file.path}: {file.arch}.{name} is {value!r}; is this the GGUF of a target model?")
        return value

    if file.arch == "eagle3":
        raise ConversionError(f"{file.path}: is a draft; --target names the model that the draft was trained for")
    tokenizer = {key: value for key, value in file.raw.items() if key.startswith("tokenizer.")}
    tokens = file.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ConversionError(f"{file.path}: holds no tokenizer; name the target's Hugging Face folder instead")
    n_mtp = file.arch_key("nextn_predict_layers", 0)

    def head_rows(ids: np.ndarray) -> np.ndarray:
        name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        if name not in file.tensors:
            raise ConversionError(f"{file.path}: holds neither output.weight nor token_embd.weight (a split GGUF?)")
        return file.rows(name, ids)

    return Target(
        name=file.path.name,
        architecture=file.arch,
        hidden_size=number("embedding_length"),
        n_layer=number("block_count") - n_mtp,
        n_vocab=len(tokens),
        write_tokenizer=lambda out: out.keys.update(tokenizer),
        head_rows=head_rows,
    )


def _from_checkpoint(checkpoint: Checkpoint, pre: str | None) -> Target:
    top = Fields(checkpoint.config, f"{checkpoint.source}: config.json")
    text = top.child("text_config") or top
    n_vocab = text.integer("vocab_size") or top.need_integer("vocab_size")
    model_type = text.text("model_type") or top.text("model_type") or ""
    tokenizer = read_tokenizer(checkpoint, n_vocab, pre=pre)

    def head_rows(ids: np.ndarray) -> np.ndarray:
        names = checkpoint.names()
        for name in HEADS + EMBEDDINGS:
            if name in names:
                return to_f32(checkpoint.read(name)[ids], checkpoint.info(name).dtype)
        raise ConversionError(
            f"{checkpoint.source}: neither an output matrix nor embeddings; is the download complete?"
        )

    return Target(
        name=publishable_name(checkpoint),
        architecture=MODEL_TYPES.get(model_type, model_type.replace("_", "-")),
        hidden_size=text.need_integer("hidden_size"),
        n_layer=text.need_integer("num_hidden_layers"),
        n_vocab=n_vocab,
        write_tokenizer=tokenizer.write,
        head_rows=head_rows,
    )


def publishable_name(checkpoint: Checkpoint) -> str:
    """A hub id as it is; of a local folder only its last name, because a GGUF may be passed on."""
    return checkpoint.path.resolve().name if Path(checkpoint.source).expanduser().exists() else checkpoint.source
