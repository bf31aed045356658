"""Comparison of the tokens of a converted file with those of its checkpoint."""

from __future__ import annotations

from pathlib import Path

from llama_eagle.convert.pre_tokenizers import PRE_TOKENIZERS, StoredEncoder
from llama_eagle.convert.settings.options import TargetOptions
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import TokenizerData, accept, read_chat_templates
from llama_eagle.gguf.header import Header, read_header

PIECES = "llama"  # llama.cpp's name of SentencePiece vocabularies
TEKKEN = "tekken"  # and of the splits of Mistral's tekken.json


def check_tokens(file: Path, checkpoint: Checkpoint, options: TargetOptions) -> list[str]:
    """Compare the engine's tokens with those of tokenizer.model or tokenizer.json; return warnings.

    Raises `ConfigError` for a difference, unless the options accept it.
    """
    warnings: list[str] = []
    header = read_header(file)
    model, stored = checkpoint.path / "tokenizer.model", checkpoint.path / "tokenizer.json"
    if header.keys.get("tokenizer.ggml.model") == PIECES and model.is_file():
        problems = options.check_pieces(file, model) if options.check_pieces else []
    elif stored.is_file():
        data = stored_data(header, checkpoint, warnings)
        problems = options.check_tokenizer(file, data) if options.check_tokenizer else []
    else:
        problems = _unlike_tekken(checkpoint)
        warnings.append(f"{checkpoint.source}: no tokenizer.json or tokenizer.model to compare its tokens with")
    accept(problems[:1], checkpoint.source, warnings, force=options.force_tokenizer)
    return warnings


def _unlike_tekken(checkpoint: Checkpoint) -> list[str]:
    """Return a difference of tekken.json's splits: the converter names llama.cpp's, whatever they are."""
    settings = (checkpoint.json_file("tekken.json") or {}).get("config")
    pattern = settings.get("pattern") if isinstance(settings, dict) else None
    if pattern is None or PRE_TOKENIZERS.get(pattern) == TEKKEN:
        return []
    return [f"tekken.json splits text by another expression than llama.cpp's {TEKKEN} ({pattern!r:.80})"]


def stored_data(header: Header, checkpoint: Checkpoint, warnings: list[str]) -> TokenizerData:
    """Return a file's vocabulary, with the encoder of the checkpoint's tokenizer.json."""
    special = {name: header.keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    settings = checkpoint.json_file("tokenizer_config.json") or {}
    return TokenizerData(
        tokens=header.value("tokenizer.ggml.tokens", []),
        types=header.value("tokenizer.ggml.token_type", []),
        merges=[],
        pre=str(header.keys.get("tokenizer.ggml.pre", "")),
        encoder=StoredEncoder(checkpoint.path / "tokenizer.json"),
        special_ids={name: token for name, token in special.items() if type(token) is int},
        chat_templates=read_chat_templates(checkpoint, settings, warnings),
    )
