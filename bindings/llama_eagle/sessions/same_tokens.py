"""Comparison of the engine's tokens with those of the `tokenizers` package, on texts that show known differences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle.convert.pre_tokenizers import normalizer_problem
from llama_eagle.convert.source.storage import read_json
from llama_eagle.errors import EagleError, EnvironmentFailure, InputError
from llama_eagle.native import log
from llama_eagle.sessions.chats.messages import render_chat
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer

if TYPE_CHECKING:
    from llama_eagle.convert.tokenizer import TokenizerData

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]  # texts -> ids, with the tokens around each text

# Composed characters only (NFC): llama.cpp does not normalize, and texts are nearly always in this form.
TEXTS = (
    "The quick brown fox jumps over the lazy dog. It's what they've said, isn't it? WE'LL SEE; I'D say 'tis.",
    "Über Öl, Äpfel und Straßen: „Grüße“. Ça va? Où est l'été à Noël? ¿Qué tal, señor? Łódź, žluťoučký kůň.",
    "Привет, мир! Ещё раз: съешь же этих мягких булок. Καλημέρα κόσμε. Բարեւ. გამარჯობა.",
    "你好，世界。今天是2025年3月14日。日本語のテスト、カタカナ。안녕하세요 세계. สวัสดีชาวโลก Việt Nam.",
    "नमस्ते दुनिया। বাংলা ভাষা। தமிழ் மொழி. مرحبا بالعالم، كيف الحال؟ שלום עולם.",
    "0 1 12 123 1234 12345 123456 2025 3.14159 1,000,000 1e-9 0x1F v2.0.1 ½ ² ٣٤ 第12回",
    "def f(x: int) -> str:\n    # comment\n\tif x >= 10 and not x % 2:\n\t\treturn f\"{x!r:>8}\"\n    return ''\n",
    "#include <vector>\nint main() { std::vector<int> v{1,2}; for (auto& e : v) e += 1; return v[0] != 2; }\r\n",
    "SELECT * FROM t WHERE a='b'; -- x\n{\"key\": [1, 2.5, null], \"url\": \"https://example.org/a?b=c&d=%20#e\"}\n",
    "<!DOCTYPE html><div class=\"a\"><li><s>old price</s> 12 EUR</li><br/><PRE>x</PRE></div><!-- end -->",
    " a  b   c    d     e\t\tf\t g \n h\n\ni\n\n\n  j\r\nk\r\n\r\n   \n  l    \n",
    "   leading", "trailing   ", "\n", "\n\n", " \n ", "\t", "  ", " ", "x",
    "😀 👍🏽 👨‍👩‍👧 🇩🇪 → ∑ ≤ € © ™ … — “quoted” «x» ‘y’ ﻿bom nbsp",
    "ПриветМир naïveÉcole ΆλφαΒήτα straßeÖL ªº ǅungla हिन्दीमें สวัสดีครับ नMarks",
    "CamelCase snake_case kebab-case UPPER MixedUP iPhone x86_64 a.b.c /usr/bin C:\\dir ~!@#$%^&*()_+`-=[]{}|;:,.?",
    "I'm you're he's we've they'd IT'S DON'T 'S 't 'Ll",
)  # fmt: skip
CHAT = (
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is 12 x 12?\n\nShow the steps."},
    {"role": "assistant", "content": "12 x 12 = 144."},
    {"role": "user", "content": "Danke!"},
)
MARKUP = re.compile(r"[<\[_][\x21-\x7e]{1,24}[>\]\[]")  # a vocabulary's entry that a loader could take for special
MAX_MARKUP = 2000
MAX_CROSSING = 2000


@dataclass(frozen=True)
class Difference:
    """A text and its ids by the engine and by the reference."""

    text: str
    engine: tuple[int, ...]
    reference: tuple[int, ...]

    def __str__(self) -> str:
        at = next((i for i, (a, b) in enumerate(zip(self.engine, self.reference)) if a != b), None)  # noqa: B905
        at = min(len(self.engine), len(self.reference)) if at is None else at
        return (
            f"{_short(self.text)} has the tokens {_around(self.reference, at)} in tokenizer.json, but "
            f"{_around(self.engine, at)} in the engine"
        )


def first_difference(engine: Tokenizer, encode: Encode, texts: Sequence[str]) -> Difference | None:
    """Return the first of `texts` whose tokens differ. Both sides put the vocabulary's tokens around each text."""
    for text, expected in zip(texts, encode(texts), strict=True):
        found = engine.encode(text, add_eos=True)
        if found != list(expected):
            return Difference(text, tuple(found), tuple(expected))
    return None


def compare_tokens(vocabulary: Path, data: TokenizerData) -> list[str]:
    """Compare a GGUF's vocabulary with the tokenizer.json that it was made from; return a difference as a sentence.

    data: as the converter read it. Raises `EnvironmentFailure` without the tokenizers package, and `InputError` if the
    engine cannot load the vocabulary.
    """
    try:
        encoder = data.encoder.take()
    except ImportError:
        raise EnvironmentFailure("checking the tokens needs the tokenizers package: pip install tokenizers") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises nothing narrower, and panics are no Exception
        return [f"tokenizer.json: the tokenizers package cannot read it ({str(error)[:160]}), so it is not checked"]
    special = _add_missing(encoder, data)
    encode = lambda texts: [found.ids for found in encoder.encode_batch(list(texts))]  # noqa: E731
    with _load(vocabulary) as model:
        engine = Tokenizer(model)
        for texts in (special_texts(special), TEXTS, markup_texts(data), tuple(chat_texts(data))):
            if (found := first_difference(engine, encode, texts)) is not None:
                if engine.encode(found.text, add_bos=False) == encoder.encode(found.text, add_special_tokens=False).ids:
                    return [f"{found}: its post-processor puts tokens around a text that a GGUF cannot state"]
                return [f"{found}{_reason(found, read_json(data.encoder.file), data)}"]
    return []


def compare_pieces(vocabulary: Path, pieces: Path) -> list[str]:
    """Compare a GGUF's vocabulary with the tokenizer.model that it was made from; return a difference as a sentence.

    Texts without special tokens are compared, because SentencePiece has no rule for others. Raises
    `EnvironmentFailure` without the sentencepiece package.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise EnvironmentFailure("checking the tokens needs sentencepiece: pip install sentencepiece") from None
    processor = SentencePieceProcessor()
    processor.Load(str(pieces))
    with _load(vocabulary) as model:
        engine = Tokenizer(model)
        for text, expected in zip(TEXTS, processor.Encode(list(TEXTS)), strict=True):
            found = engine.encode(text, special=False, add_bos=False)
            if found != expected:
                return [str(Difference(text, tuple(found), tuple(expected))).replace("tokenizer.json", pieces.name)]
    return []


def _load(vocabulary: Path) -> Model:
    """Load the vocabulary of an unfinished file, whose name no message states. Raises `InputError`."""
    try:
        return Model(vocabulary, LoadOptions(vocab_only=True))
    except InputError:
        reason = log.first_error() or "no reason given"
        raise InputError(
            f"llama.cpp cannot load the converted vocabulary: {reason}. Correct the tokenizer, or the name of --pre."
        ) from None


def special_texts(special: Sequence[str]) -> tuple[str, ...]:
    """Return texts with special tokens: each alone and inside of a text, and two that share characters."""
    alone = (text for token in special for text in (token, f"x{token}y", f"a {token} b\n{token}\n"))
    return (*alone, *islice(_crossing(special), MAX_CROSSING))


def _crossing(special: Sequence[str]) -> Iterator[str]:
    """Yield texts in which a token ends with the beginning of another one: the engine takes the longer of them."""
    begins = defaultdict(list)
    for token in special:
        for n in range(1, len(token)):
            begins[token[:n]].append(token)
    for token in special:
        for n in range(1, len(token)):
            yield from (token[:n] + other for other in begins.get(token[n:], ()))


def markup_texts(data: TokenizerData) -> tuple[str, ...]:
    """Return texts with ordinary entries of the vocabulary that look like special tokens."""
    normal = [text for text, kind in zip(data.tokens, data.types, strict=True) if kind == 1 and MARKUP.fullmatch(text)]
    return tuple(f"x {text} y" for text in normal[:MAX_MARKUP])


def chat_texts(data: TokenizerData) -> Iterator[str]:
    """Yield a chat as the default template renders it. Yields nothing if the template refuses these messages."""
    if template := data.chat_templates.get("default"):
        names = {f"{name}_token": _text_of(data, name) for name in ("bos", "eos")}
        variables = {"messages": list(CHAT), "tools": None, "add_generation_prompt": True, **names}
        try:
            yield render_chat(template, variables, "tokenizer_config.json")
        except EagleError:
            return


def _text_of(data: TokenizerData, name: str) -> str:
    token = data.special_ids.get(name)
    return "" if token is None else data.tokens[token]


def _add_missing(encoder: Any, data: TokenizerData) -> list[str]:
    """Add the special tokens of tokenizer_config.json, as transformers does; return all added tokens."""
    from tokenizers import AddedToken

    kinds = {3: True, 4: False}  # control, user-defined
    added = {i: text for i, (text, kind) in enumerate(zip(data.tokens, data.types, strict=True)) if kind in kinds}
    known = encoder.get_added_tokens_decoder()
    for i, text in added.items():
        if i not in known:
            encoder.add_tokens([AddedToken(text, normalized=False, special=kinds[data.types[i]])])
    return list(added.values())


def _reason(found: Difference, stored: dict[str, Any], data: TokenizerData) -> str:
    """Return the reason of a difference, if it is known."""
    extra = set(found.engine) - set(found.reference)
    taken = [data.tokens[i] for i in extra if 0 <= i < len(data.tokens) and data.tokens[i] in found.text]
    for token in stored.get("added_tokens") or []:
        flags = [name for name in ("lstrip", "rstrip", "single_word", "normalized") if token.get(name)]
        if flags and token["content"] in found.text:
            return f": {token['content']!r} has the flag {flags[0]}, which a GGUF cannot state"
    if reason := normalizer_problem(stored):
        return f": {reason}"
    if taken and any(data.types[i] == 1 for i in extra if data.tokens[i] in taken):
        return f": llama.cpp takes {taken[0]!r} for a special token"
    return f" with the pre-tokenizer {data.pre}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _around(ids: tuple[int, ...], at: int) -> str:
    """Return the ids near a position."""
    start = max(at - 3, 0)
    part = [str(i) for i in ids[start : at + 8]]
    return f"[{', '.join([*(['...'] if start else []), *part, *(['...'] if at + 8 < len(ids) else [])])}]"
