"""Files that once ended the process, each refused with the name of what contradicts itself."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures import dflash
from fixtures.dflash import CASES as BLOCK_CASES
from fixtures.dflash import OURS as OUR_BLOCK_CASES
from fixtures.dflash import make_dflash
from fixtures.eagle3_checkpoints import CASES, PEAGLE, make_draft, make_target_gguf
from fixtures.tiny_gguf import write_draft, write_target
from fuzz.gguf_file import MUTATIONS, File, Tensor, mutated, read, resized, text
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import EagleError, InputError
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.validate import require_vocabulary

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
NAN = float("nan")


def key(name: str, value: float | bytes, kind: int = U32) -> Callable[[File], None]:
    """Sets a key of the draft or target."""
    encoded = text(value) if isinstance(value, bytes) else struct.pack({F32: "<f", BOOL: "<?"}.get(kind, "<I"), value)

    def change(file: File) -> None:
        full = name.encode()
        if "." not in name or not name.startswith(("general.", "tokenizer.")):
            full = arch(file) + b"." + full
        file.keys = [entry for entry in file.keys if entry[0] != full] + [(full, kind, encoded)]

    return change


def arch(file: File) -> bytes:
    return next(value[8:] for name, _, value in file.keys if name == b"general.architecture")


def tensor(name: str, *, type_id: int | None = None, dims: list[int] | None = None) -> Callable[[File], None]:
    def change(file: File) -> None:
        found = named(file, name)
        found.type_id = found.type_id if type_id is None else type_id
        found.dims = found.dims if dims is None else dims
        resized(found)

    return change


def added(name: str, dims: list[int], type_id: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.tensors.append(Tensor(name.encode(), dims, type_id, b""))
        resized(file.tensors[-1])

    return change


def alignment(file: File) -> None:
    file.alignment = 1
    key("general.alignment", 1)(file)


def sections(first: int, second: int = 0) -> Callable[[File], None]:
    return numbers("rope.dimension_sections", first, second, 0, 0)


def numbers(name: str, *values: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        full = arch(file) + b"." + name.encode()
        file.keys = [entry for entry in file.keys if entry[0] != full]
        file.keys.append((full, ARRAY, struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)))

    return change


def same_tokens(file: File) -> None:
    """Tokens that are the same to the zero, where llama.cpp ends a text."""
    at = next(i for i, entry in enumerate(file.keys) if entry[0] == b"tokenizer.ggml.tokens")
    kind, count = struct.unpack_from("<IQ", file.keys[at][2])
    texts = [text(b"same\0%d" % i) for i in range(count)]
    file.keys[at] = (*file.keys[at][:2], struct.pack("<IQ", kind, count) + b"".join(texts))


DRAFTS: dict[str, tuple[Callable[[File], None], str]] = {
    "I8 matrix": (tensor("fc.weight", type_id=24), "fc.weight is I8"),
    "I16 matrix": (tensor("blk.0.attn_q.weight", type_id=25), "attn_q.weight is I16"),
    "I32 matrix": (tensor("blk.0.ffn_up.weight", type_id=26), "ffn_up.weight is I32"),
    "F64 matrix": (tensor("output.weight", type_id=28), "output.weight is F64"),
    "Q8_1 matrix": (tensor("blk.0.attn_v.weight", type_id=9), "attn_v.weight is Q8_1"),
    "F16 norm": (tensor("output_norm.weight", type_id=1), "output_norm.weight is F16, it must be F32"),
    "BF16 norm of a block": (tensor("blk.0.attn_norm.weight", type_id=30), "attn_norm.weight is BF16"),
    "no ids": (tensor("d2t", dims=[0]), "tensor 'd2t' has the shape [0]"),
    "F16 rope_freqs": (added("rope_freqs.weight", [16], 1), "rope_freqs.weight is F16"),
    "short rope_freqs": (added("rope_freqs.weight", [3], 0), "rope_freqs.weight has shape"),
    "no rotary dimensions": (key("rope.dimension_count", 0), "rope.dimension_count"),
    "odd rotary dimensions": (key("rope.dimension_count", 7), "7 rotary dimensions"),
    "rotation beyond the head": (key("rope.dimension_count", 64), "64 rotary dimensions"),
    "wide sections of the rotation": (sections(99, 1), "rotary sections of [99, 1, 0, 0]"),
    "sections that are no array": (key("rope.dimension_sections", 8), "not an array of four"),
    "heads that do not divide": (key("attention.head_count_kv", 3), "do not divide"),
    "no heads": (key("attention.head_count", 0), "attention.head_count is 0"),
    "no kv heads": (key("attention.head_count_kv", 0), "attention.head_count_kv is 0"),
    "many blocks": (key("block_count", 10**8), "block_count is 100000000"),
    "no block": (key("block_count", 0), "block_count is 0"),
    "prediction blocks": (key("nextn_predict_layers", 1), "nextn_predict_layers"),
    "experts": (key("expert_count", 8), "experts"),
    "more experts used than there are": (key("expert_used_count", 8), "experts"),
    "unknown scaling": (key("rope.scaling.type", b"unheard", STRING), "rope.scaling.type"),
    "negative epsilon": (key("attention.layer_norm_rms_epsilon", -1.0, F32), "epsilon is -1"),
    "epsilon that is none": (key("attention.layer_norm_rms_epsilon", NAN, F32), "epsilon is nan"),
    "alignment": (alignment, "not aligned"),
    "short embeddings": (added("token_embd.weight", [64, 100], 0), "token_embd.weight has shape [64, 100]"),
    "no dimensions": (tensor("fc.weight", dims=[]), "fc.weight has shape [1]"),
    "a key of another type": (key("embedding_length", b"64", STRING), "embedding_length is string"),
    "a flag of another type": (key("norm_before_fc", 1), "norm_before_fc is u32"),
    "base of rotation": (key("rope.freq_base", 0.0, F32), "rope.freq_base is 0"),
    "values of another size": (key("attention.value_length", 16), "values of 16"),
    "alignment of another type": (key("general.alignment", b"32", STRING), "alignment"),
    "a token twice": (same_tokens, "tokens contains a token twice"),
}
TARGETS: dict[str, tuple[Callable[[File], None], str]] = {
    "no interval": (key("full_attention_interval", 0), "full_attention_interval is 0"),
    "groups that do not divide": (key("ssm.group_count", 3), "do not divide"),
    "no groups": (key("ssm.group_count", 0), "ssm.group_count is 0"),
    "many blocks": (key("block_count", 2**30), "block_count is 1073741824"),
    "only prediction blocks": (key("nextn_predict_layers", 4), "prediction blocks"),
    "wide sections of the rotation": (sections(100), "rotary sections of [100, 0, 0, 0]"),
    "no sections of the rotation": (sections(0), "rotary sections of [0, 0, 0, 0]"),
    "three sections (Ollama)": (
        numbers("rope.dimension_sections", 3, 3, 2),
        "the key qwen35.rope.dimension_sections has wrong array length; expected 4, got 3",
    ),
    "sections that do not interleave": (sections(8), "[8, 0, 0, 0] do not rotate pair 1 of 8"),
    "no kv heads in recurrent blocks (Ollama)": (numbers("attention.head_count_kv", 0, 0, 0, 2), "0 groups"),
    "F16 convolution": (tensor("blk.0.ssm_conv1d.weight", type_id=1), "ssm_conv1d.weight is F16"),
    "F16 decay": (tensor("blk.0.ssm_a", type_id=1), "ssm_a is F16"),
    "inner size": (key("ssm.inner_size", 32), "ssm.inner_size is 32"),
    "integer embeddings": (tensor("token_embd.weight", type_id=26), "token_embd.weight is I32"),
    "an endless context": (key("context_length", 2**31 - 1), "context_length is 2147483647"),
    "vision features of another type": (key("n_deepstack_layers", NAN, F32), "n_deepstack_layers is f32"),
    "all experts": (key("expert_count", 2**31), "expert_count is 2147483648"),
    "a tokenizer that is none": (key("tokenizer.ggml.model", b"none", STRING), "no tokenizer"),
    "a block of another kind": (key("full_attention_interval", 2), "is missing"),
}

# Of converted block drafts: the case, the change, the message.
BLOCKS: dict[str, tuple[str, Callable[[File], None], str]] = {
    "no boundaries": ("dflash", key("target_layers", 3), "target_layers is not an array"),
    "a block of one row": ("dflash", key("block_size", 1), "block_size is 1"),
    "a mask that is no token": ("dflash", key("tokenizer.ggml.mask_token_id", 512), "the mask token is 512 of 512"),
    "I8 matrix": ("dflash", tensor("fc.weight", type_id=24), "fc.weight is I8"),
    "F16 norm of heads": ("dflash", tensor("blk.1.attn_q_norm.weight", type_id=1), "attn_q_norm.weight is F16"),
    "heads that do not divide": ("dflash", key("attention.head_count_kv", 3), "do not divide"),
    "wide sections of the rotation": ("dflash", sections(99, 1), "rotary sections of [99, 1, 0, 0]"),
    "a foreign tensor": ("dflash", added("blk.0.attn_post_norm.weight", [64], 0), "do not belong to a draft"),
    "a short Markov head": ("dspark", tensor("markov_w2.weight", dims=[16, 100]), "markov_w2.weight has shape"),
    "a narrow gate": ("dspark-gated", tensor("markov_w2.gate.weight", dims=[79, 16]), "gate.weight has shape"),
    "a short cell": ("dspark-rnn", tensor("markov_w2.gate.weight", dims=[96, 47]), "gate.weight has shape"),
    "a cell that begins late": ("dspark-rnn", key("sample_from_anchor", False, BOOL), "recurrent Markov head begins"),
    "groups that do not divide": ("dflash2", key("conv_group_size", 7), "groups of 7"),
    "many candidates": ("dflash2", key("selector_top_k", 60), "60 candidates"),
    "a flat kernel": ("dflash2", tensor("blk.0.attn_conv_base", dims=[64, 4, 1]), "attn_conv_base has shape"),
}


@pytest.mark.parametrize("fault", BLOCKS)
def test_block_drafts(fault: str, tmp_path: Path) -> None:
    case, change, message = BLOCKS[fault]
    target = make_target_gguf(tmp_path / "target.gguf")
    convert_draft(
        make_dflash(tmp_path / "draft", {**BLOCK_CASES, **OUR_BLOCK_CASES}[case]), target, tmp_path / "bad.gguf"
    )
    require_models(target, tmp_path / "bad.gguf")
    file = read(tmp_path / "bad.gguf")
    if "a mask" in fault:
        for token in (0, 511):
            key("tokenizer.ggml.mask_token_id", token)(file)
            (tmp_path / "bad.gguf").write_bytes(file.encode())
            require_models(target, tmp_path / "bad.gguf")
    change(file)
    (tmp_path / "bad.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match=re.escape(message)):
        require_models(target, tmp_path / "bad.gguf")


def test_the_most_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight, with a score and eight transitions each, fill rows of 72 values."""
    monkeypatch.setattr(dflash, "HIDDEN", 72)
    monkeypatch.setattr(dflash, "GROUP", 8)
    target = make_target_gguf(tmp_path / "target.gguf", hidden=72)
    for n in (8, 9):
        spec = replace(BLOCK_CASES["dflash2"], top={"hidden_size": 72}, extra={"selector_top_k": n})
        draft = make_dflash(tmp_path / f"draft{n}", spec)
        if n == 8:
            convert_draft(draft, target, tmp_path / "draft.gguf")
            continue
        with pytest.raises(EagleError, match="9 candidates do not fit a width of 72"):
            convert_draft(draft, target, tmp_path / "draft.gguf")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sound")
    return write_target(folder / "target.gguf"), write_draft(folder / "draft.gguf")


@pytest.mark.parametrize("fault", DRAFTS)
def test_drafts(fault: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    change, message = DRAFTS[fault]
    file = read(files[1])
    change(file)
    (tmp_path / "bad.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match=re.escape(message)):
        require_models(files[0], tmp_path / "bad.gguf")


def test_a_vocabulary_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    file = read(files[0])
    same_tokens(file)
    (tmp_path / "bad.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match="tokens contains a token twice"):
        require_vocabulary(read_model(tmp_path / "bad.gguf")[1])


@pytest.mark.parametrize("fault", TARGETS)
def test_targets(fault: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    change, message = TARGETS[fault]
    file = read(files[0])
    change(file)
    (tmp_path / "bad.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match=re.escape(message)):
        require_models(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: setattr(file.tensors[1], "offset", 0), "is at byte 0 of the data, expected"),
        (lambda file: setattr(file.tensors[0], "data", file.tensors[0].data + bytes(64)), "of the data, expected"),
        (lambda file: file.keys.append((b"", U32, bytes(4))), "a key has no name"),
        (lambda file: setattr(file.tensors[-1], "type_id", 77), "is type-77, which llama.cpp does not know"),
    ],
)
def test_layouts_that_llama_cpp_refuses(
    change: Callable[[File], None], message: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    file = read(files[0])
    change(file)
    (tmp_path / "bad.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match=message):
        require_models(tmp_path / "bad.gguf")


def test_mutations_end_in_an_error_or_none(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The reading side alone, which is quick; tests/fuzz goes on to load what is taken."""
    other = make_target_gguf(tmp_path / "other.gguf")
    checkpoint = make_draft(tmp_path / "checkpoint", CASES["everything"])
    convert_draft(checkpoint, other, tmp_path / "extended.gguf", DraftOptions(outtype="f32"))
    path, refused = tmp_path / "bad.gguf", 0
    for seed in range(600):
        target, draft = [(files[0], files[1]), (other, tmp_path / "extended.gguf"), (files[0], None)][seed % 3]
        path.write_bytes(mutated(draft or target, seed))
        try:
            require_models(*((target, path) if draft else (path,)))
        except EagleError as error:
            assert len(str(error)) < 1000
            refused += 1
    assert 300 < refused < 590


MASK_TOKEN = "tokenizer.ggml.mask_token_id"
PEAGLE_FAULTS: dict[str, tuple[Callable[[File], None], str]] = {
    "no states for masks": (lambda file: file.tensors.remove(named(file, "fc.mask")), "has only one of fc.mask and"),
    "F16 states": (tensor("fc.mask", type_id=1), "fc.mask is F16, it must be F32"),
    "narrow states": (tensor("fc.mask", dims=[64]), "fc.mask has shape"),
    "no tokens in a pass": (key("block_size", 0), "block_size is 0"),
    "many tokens in a pass": (key("block_size", 65), "block_size is 65"),
    "mask beyond the vocabulary": (key(MASK_TOKEN, 512), "mask token is 512, expected an id below 512"),
}


def named(file: File, name: str) -> Tensor:
    return next(t for t in file.tensors if t.name == name.encode())


@pytest.mark.parametrize("fault", PEAGLE_FAULTS)
def test_faults_of_p_eagle(fault: str, tmp_path: Path) -> None:
    change, message = PEAGLE_FAULTS[fault]
    checkpoint = make_draft(tmp_path / "draft", PEAGLE["plain"])
    target = make_target_gguf(tmp_path / "t.gguf")
    convert_draft(checkpoint, target, tmp_path / "d.gguf", DraftOptions(outtype="f32"))
    require_models(target, tmp_path / "d.gguf")
    file = read(tmp_path / "d.gguf")
    change(file)
    (tmp_path / "d.gguf").write_bytes(file.encode())
    with pytest.raises(InputError, match=re.escape(message)):
        require_models(target, tmp_path / "d.gguf")


def test_every_mutation_keeps_a_file_apart_and_together(files: tuple[Path, Path]) -> None:
    """A file that is taken apart and not changed is the same file."""
    for path in files:
        assert read(path).encode() == path.read_bytes()
    for mutation in MUTATIONS:
        file, before = read(files[1]), files[1].read_bytes()
        for seed in range(5):
            mutation(file, random.Random(seed))
        assert file.encode() != before
