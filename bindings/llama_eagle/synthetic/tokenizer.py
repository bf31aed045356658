"""Tokenizer files of a constructed target: byte-level BPE with Qwen3.5's pre-tokenizer and ChatML tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llama_eagle.synthetic.cycle import N_BYTES, Cycle, word

# The split in Qwen3.5's tokenizer.json and in transformers' Qwen3_5Tokenizer, which converters recognize.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SPACE = "\u0120"  # the letter of the space byte


def byte_letters() -> list[str]:
    """Return the letter of each byte in byte-level BPE: itself if it is printable Latin-1, others follow 0x100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(N_BYTES)]


def write_tokenizer(folder: Path, cycle: Cycle) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    vocab = {letter: byte for byte, letter in enumerate(byte_letters())}
    merges = []
    for rank, token in enumerate(cycle.word_ids.tolist()):
        text = SPACE + word(rank)
        vocab[text] = token
        merges.append([text[:-1], text[-1]])
    added = [_added_token(text, token) for text, token in cycle.special_ids.items()]
    _write_json(folder / "tokenizer.json", _tokenizer_json(vocab, merges, added))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(added))


def _added_token(text: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **flags, "special": True}


def _tokenizer_json(vocab: dict[str, int], merges: list[list[str]], added: list[dict[str, Any]]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _tokenizer_config(added: list[dict[str, Any]]) -> dict[str, Any]:
    decoder = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added}
    return {
        "tokenizer_class": "Qwen2TokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 262144,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
