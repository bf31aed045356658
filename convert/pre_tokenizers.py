"""llama.cpp's names of pre-tokenizers: by vocabularies that its converter knows, and by regular expressions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from llama_eagle.convert.pre_hashes import TEXT, name_of
from llama_eagle.errors import ConfigError

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_TAIL: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# The regular expression that splits text before BPE -> llama.cpp's name for it.
PRE_TOKENIZERS: Final[dict[str, str]] = {
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}": "qwen2",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}": "qwen35",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}": "llama-bpe",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}": "seed-coder",
    rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}": "tekken",
    rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}": "gpt-4o",
}

# More than one step -> the name. "Digits" are single digits, "ByteLevel" splits as GPT-2 does.
_CJK: Final = "[一-龥\u3040-ゟ゠-ヿ]+"
PRE_SEQUENCES: Final[dict[tuple[str, ...], str]] = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", "Digits"): "deepseek-coder",
    (
        r"\p{N}{1,3}",
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    ): "minicpm5",
    (
        r"\p{N}{1,3}",
        _CJK,
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "deepseek-v3",
}

# Names by which llama.cpp takes a whole word from the vocabulary before it merges (ignore_merges), and the name of the
# same split with the other rule, if there is one.
_LLAMA3: Final = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
)  # fmt: skip
IGNORE_MERGES: Final = {*_LLAMA3, "minicpm5", "youtu", "glm4", "glm5", "tekken", "granite-embed-multi-97m"}
OTHER_RULE: Final = {
    **dict.fromkeys(_LLAMA3, "smaug-bpe"),
    **dict.fromkeys(("smaug-bpe", "dbrx"), "llama-bpe"),
    "glm4": "chatglm-bpe",
    "chatglm-bpe": "glm4",
}
# The bytes of texts, as byte-level BPE writes them. Published vocabularies lack some, for control characters and
# planes of Unicode without characters.
_PRINTED: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0xC0), *range(0xC2, 0xF1))
_BYTES: Final = {*map(chr, (*_PRINTED, 0x109, 0x10A, 0x10D, 0x120, *range(0x122, 0x144)))}
_BATCH: Final = 1 << 15  # texts that are tokenized at once


def nodes(node: dict[str, Any] | None, children: str) -> Iterable[dict[str, Any]]:
    """Return the parts of a normalizer, pre-tokenizer or post-processor that is a sequence, and any other alone."""
    if node is None:
        return []
    if node.get("type") != "Sequence":
        return [node]
    return [part for child in node[children] for part in nodes(child, children)]


class StoredEncoder:
    """The `tokenizers.Tokenizer` of a file, loaded once: a large vocabulary takes a second."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._loaded: Any = None

    def get(self) -> Any:
        """Return the encoder, to be left as it is. Raises as `load_encoder` does."""
        if self._loaded is None:
            self._loaded = load_encoder(self.file)
        return self._loaded

    def take(self) -> Any:
        """Return the encoder and forget it: the caller may change it, and its memory is free afterwards."""
        taken, self._loaded = self.get(), None
        return taken


def pre_tokenizer_name(data: dict[str, Any], encoder: StoredEncoder | None = None) -> str:
    """Return llama.cpp's name for the pre-tokenizer of a tokenizer.json.

    encoder: its own. A vocabulary that llama.cpp's converter knows has the name that it has there; any other is
    named by its splitting regular expression. Raises `ConfigError` when both are unknown.
    """
    patterns = _patterns(data)
    form = PRE_SEQUENCES.get(patterns) or (PRE_TOKENIZERS.get(patterns[0]) if len(patterns) == 1 else None)
    name = (encoder and _known_vocabulary(encoder)) or form
    if form is not None and name in (*PRE_TOKENIZERS.values(), *PRE_SEQUENCES.values()):
        name = form  # the vocabulary of one form with the split of another
    if name is None:
        known = ", ".join([*PRE_TOKENIZERS.values(), *PRE_SEQUENCES.values()])
        raise ConfigError(
            f"tokenizer.json splits text by {list(patterns) or 'nothing'}, which is none of the known pre-tokenizers "
            f"({known}): name llama.cpp's pre-tokenizer for it with --pre"
        )
    return name


def fitting_name(data: dict[str, Any], encoder: StoredEncoder, given: str | None = None) -> tuple[str, list[str]]:
    """Return the name of a tokenizer.json, and its fields that change tokens and that a GGUF cannot state.

    encoder: its own. given: llama.cpp's name of the pre-tokenizer, instead of the detected one. The detected name gives
    way to another of the same split if llama.cpp's rule for merges (`ignore_merges`) would change the tokens of a text.
    """
    name = given or pre_tokenizer_name(data, encoder)
    reasons = (normalizer_problem(data), *_model_problems(data["model"]))
    problems = [f"tokenizer.json: {reason}" for reason in reasons if reason]
    steps = nodes(data.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] == "ByteLevel" and step.get("add_prefix_space", True) for step in steps):
        problems.append("tokenizer.json: ByteLevel's add_prefix_space is true, but llama.cpp adds no space to a text")
    ignores = bool(data["model"].get("ignore_merges"))
    if ignores != (name in IGNORE_MERGES) and (text := _text_of_merges(data, encoder)) is not None:
        if given is None and name in OTHER_RULE:
            return OTHER_RULE[name], problems
        rule = "merges all words" if ignores else "takes whole words from the vocabulary"
        problems.append(
            f"tokenizer.json: ignore_merges is {str(ignores).lower()}, but llama.cpp {rule} with the pre-tokenizer "
            f"{name}: {text!r} has other tokens"
        )
    return name, problems


def normalizer_problem(data: dict[str, Any]) -> str | None:
    """Return the reason why a normalizer changes tokens. NFC is accepted: texts are nearly always in this form."""
    kinds = [step["type"] for step in nodes(data.get("normalizer"), "normalizers")]
    others = [kind for kind in kinds if kind != "NFC"]
    return f"its normalizer is {', '.join(others)}, which llama.cpp does not apply" if others else None


def _model_problems(model: dict[str, Any]) -> Iterable[str]:
    """Yield the fields of a BPE model that llama.cpp does not apply."""
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            yield f"its {key} is {model[key]!r}, which llama.cpp does not apply"
    if missing := sum(letter not in model["vocab"] for letter in _BYTES):
        yield f"its vocabulary lacks {missing} bytes, around which llama.cpp merges otherwise"


def _text_of_merges(data: dict[str, Any], encoder: StoredEncoder) -> str | None:
    """Return a text whose tokens depend on ignore_merges: a word of the vocabulary that its merges do not produce."""
    from tokenizers import Tokenizer, decoders

    other = {**data, "model": {**data["model"], "ignore_merges": not data["model"].get("ignore_merges")}}
    encoders = (encoder.get(), Tokenizer.from_str(json.dumps(other)))
    decoder = decoders.ByteLevel()
    texts = [decoder.decode([token]) for token in data["model"]["vocab"]]
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        found = (each.encode_batch(batch, add_special_tokens=False) for each in encoders)
        for text, one, two in zip(batch, *found, strict=True):
            if one.ids != two.ids:
                return text
    return None


def _patterns(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the steps by which text is split: regular expressions, and the names of others."""
    patterns = []
    for node in nodes(data.get("pre_tokenizer"), "pretokenizers"):
        if node["type"] == "Split":
            pattern = node["pattern"].get("Regex") or f"the text {node['pattern'].get('String')!r}"
            keeps_all = (node.get("behavior"), node.get("invert", False)) in (("Isolated", False), ("Removed", True))
            pattern = pattern if keeps_all else f"{pattern} ({node.get('behavior')})"
            patterns.append(pattern.replace("\r", r"\r").replace("\n", r"\n"))
        elif node["type"] == "Digits" and not node.get("individual_digits"):
            patterns.append("Digits in groups")
        elif node["type"] != "ByteLevel" or node.get("use_regex", True):
            patterns.append(node["type"])
    return tuple(patterns)


def load_encoder(file: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a file, without its truncation and padding (of fine-tuning).

    Raises ImportError without the tokenizers package, and that package's own errors.
    """
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(file))
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _known_vocabulary(encoder: StoredEncoder) -> str | None:
    """Return the name for what the tokenizer makes of the converter's text; None without the tokenizers package."""
    try:
        return name_of(encoder.get().encode(TEXT).ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # nothing narrower is raised, and panics are no Exception; our own reader judges the file
        return None
