"""Tokenizers lack nothing that their kind needs, and no tensor has a dimension of 0."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz import tokenizer_keys
from fuzz.gguf_file import File, Tensor, mutated, read
from fuzz.tokenizer_keys import ARRAY, BOOL, BYTE, KINDS, STRING, U32, array, drop, get, put, strings, text
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.gguf import header as headers
from llama_eagle.gguf.header import read_header
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.validate import tokenizer
from llama_eagle.gguf.validate.overrides import with_overrides


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return dict(zip(KINDS, tokenizer_keys.write_kinds(tmp_path_factory.mktemp("kinds")), strict=True))


def changed(path: Path, change: Callable[[File], None], out: Path) -> Path:
    file = read(path)
    change(file)
    out.write_bytes(file.encode())
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_sound_ones(kind: str, kinds: dict[str, Path]) -> None:
    require_models(kinds[kind])


def test_a_sound_tokenizer_is_checked_once(
    kinds: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the file changes. A file that was written less than SETTLED_S ago is checked each time."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))
    checked: list[Path] = []
    check = tokenizer._check_arrays
    monkeypatch.setattr(
        tokenizer, "_check_arrays", lambda header, tokens: checked.append(header.path) or check(header, tokens)
    )
    path = shutil.copy(next(iter(kinds.values())), tmp_path / "model.gguf")
    for settled, n_checks in ((3600, 2), (-1, 1)):
        monkeypatch.setattr(headers, "SETTLED_S", settled)
        checked.clear()
        require_models(path), require_models(path)
        assert len(checked) == n_checks
    with pytest.raises(UsageError, match="eos_token_id is 99999"):
        with_overrides([read_header(path)], {"tokenizer.ggml.eos_token_id": 99999}, "kv_overrides")
    twice = changed(path, with_token(1, read_tokens(read(path))[0]), tmp_path / "twice.gguf")
    twice.replace(path)
    for _ in range(2):
        with pytest.raises(InputError, match="contains a token twice"):
            require_models(path)


def token_id(name: str, value: int) -> Callable[[File], None]:
    return lambda file: put(file, f"{name}_token_id", U32, struct.pack("<I", value))


def model(name: str) -> Callable[[File], None]:
    return lambda file: put(file, "model", STRING, text(name.encode()))


def with_token(place: int, value: bytes) -> Callable[[File], None]:
    def change(file: File) -> None:
        tokens = [*read_tokens(file)]
        tokens[place] = value
        put(file, "tokens", ARRAY, strings(tokens))

    return change


def read_tokens(file: File) -> list[bytes]:
    value, at, found = get(file, "tokens") or b"", 12, []
    for _ in range(struct.unpack_from("<Q", value, 4)[0]):
        size = struct.unpack_from("<Q", value, at)[0]
        found.append(value[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def with_number(name: str, code: str, place: int, number: float) -> Callable[[File], None]:
    def change(file: File) -> None:
        value = get(file, name) or b""
        put(file, name, ARRAY, value[: 12 + 4 * place] + struct.pack(code, number) + value[16 + 4 * place :])

    return change


def no_eos(file: File) -> None:
    drop(file, "eos_token_id")
    put(file, "tokens", ARRAY, strings(read_tokens(file)))


FAULTS: dict[str, tuple[str, Callable[[File], None], str]] = {
    "another kind": ("gpt2", model("llama"), "tokenizer.ggml.scores is missing"),
    "no kind at all": ("gpt2", model("unigram"), "must be one of none, no_vocab"),
    "no bytes": ("llama", with_token(200, b"<0xc8>"), "no token for the byte 0xC8"),
    "a byte by another name": ("llama", with_token(200, b"other"), "'other'.* is of type byte"),
    "no byte in plamo2": ("plamo2", with_number("token_type", "<i", 77, 1), "no token for the byte 0x4D"),
    "no byte in rwkv": ("rwkv", with_token(10, b"\\q"), "no token for the byte 0x0A"),
    "a byte that is none": ("gpt2", with_number("token_type", "<i", 97, BYTE), "'a'.* is of type byte"),
    "a byte in bert": ("bert", with_number("token_type", "<i", 97, BYTE), "kind bert cannot have"),
    "a type that is none": ("llama", with_number("token_type", "<i", 5, 7), "token_type is 7"),
    "a score that is none": ("llama", with_number("scores", "<f", 5, float("nan")), "not numbers"),
    "no scores": ("t5", lambda file: drop(file, "scores"), "scores is missing"),
    "no types": ("llama", lambda file: drop(file, "token_type"), "token_type is missing"),
    "no merges": ("gpt2", lambda file: drop(file, "merges"), "merges is missing"),
    "no pair": ("gpt2", lambda file: put(file, "merges", ARRAY, strings([b"a b", b"ab"])), "'ab', which is not a pair"),
    "bos out of range": ("gpt2", token_id("bos", 272), "bos_token_id is 272, the vocabulary has 272"),
    "eos out of range": ("gpt2", token_id("eos", 2**32 - 1), "eos_token_id is 4294967295"),
    "eot out of range": ("llama", token_id("eot", 10**6), "eot_token_id is 1000000"),
    "unknown out of range": ("t5", token_id("unknown", 9999), "unknown_token_id is 9999"),
    "bos that is added": (
        "gemma4",
        token_id("bos", 2**32 - 1),
        "bos_token_id is 4294967295, but every text gets this token",
    ),
    "eos that is added": (
        "rwkv",
        lambda file: (no_eos(file), put(file, "add_eos_token", BOOL, b"\1"))[0],
        "eos_token_id is None, but every text",
    ),
    "a charsmap that is short": (
        "t5",
        lambda file: put(file, "precompiled_charsmap", ARRAY, array(0, [b"\1", b"\2"])),
        "points outside itself",
    ),
    "a charsmap of numbers": (
        "t5",
        lambda file: put(file, "precompiled_charsmap", ARRAY, array(U32, [bytes(4)])),
        "not an array of bytes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str, kinds: dict[str, Path], tmp_path: Path) -> None:
    kind, change, message = FAULTS[fault]
    with pytest.raises(InputError, match=message):
        require_models(changed(kinds[kind], change, tmp_path / "case.gguf"))


def test_files_of_mlx_lm_are_not_made_again(kinds: dict[str, Path], tmp_path: Path) -> None:
    def change(file: File) -> None:
        put(file, "token_type", ARRAY, struct.pack("<I", U32) + (get(file, "token_type") or b"")[4:])
        name = b"general.architecture"
        file.keys = [(name, STRING, text(b"llama")) if key[0] == name else key for key in file.keys]

    with pytest.raises(InputError, match=r"token_type is u32\[\].*mlx_lm.fuse.*llama-eagle convert FOLDER"):
        require_models(changed(kinds["llama"], change, tmp_path / "case.gguf"))


def charsmap(place: int, node: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        value = get(file, "precompiled_charsmap") or b""
        at = 12 + 4 + 4 * place
        put(file, "precompiled_charsmap", ARRAY, value[:at] + struct.pack("<I", node) + value[at + 4 :])

    return change


@pytest.mark.parametrize(("place", "node"), [(0, 1 << 20), (ord("Q") ^ 1, ord("Q") | 1 << 29), (2, 5), (2, 2**31 - 1)])
def test_charsmaps_point_inside(place: int, node: int, kinds: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="points outside itself"):
        require_models(changed(kinds["t5"], charsmap(place, node), tmp_path / "case.gguf"))


def test_padding_that_is_out_of_range_is_harmless(kinds: dict[str, Path], tmp_path: Path) -> None:
    require_models(changed(kinds["llama"], token_id("padding", 2**32 - 1), tmp_path / "case.gguf"))


@pytest.mark.parametrize("dims", [[0], [64, 0], [0, 0, 3], [5, 1, 1, 0]])
def test_no_dimension_is_0(dims: list[int], kinds: dict[str, Path], tmp_path: Path) -> None:
    path = changed(
        kinds["gpt2"], lambda file: file.tensors.append(Tensor(b"extra", dims, 0, b"")), tmp_path / "case.gguf"
    )
    with pytest.raises(InputError, match="'extra' has the shape"):
        read_header(path)


@pytest.mark.parametrize("kind", KINDS)
def test_mutations_are_refused_or_read(kind: str, kinds: dict[str, Path], tmp_path: Path) -> None:
    """Nothing but an error of ours; loading and generating with what is read: tests/fuzz/run.py tokenizers."""
    path, refused = tmp_path / "case.gguf", 0
    for seed in range(30):
        path.write_bytes(mutated(kinds[kind], random.Random(kind).randrange(10**6) + seed, tokenizer_keys.MUTATIONS))
        try:
            require_models(path)
        except EagleError:
            refused += 1
    assert refused
