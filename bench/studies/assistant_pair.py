"""Random weights in the shapes of Gemma 4's E2B and its assistant, as GGUF.

The assistant drafts random tokens, and none of them is accepted. The pair measures the time of a round for each draft
length, which depends on shapes and types alone. Types: those of Q4_K_M, or Q8_0; the assistant is in Q8_0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

N_VOCAB, HIDDEN, HEAD, FULL_HEAD, WINDOW, PER_LAYER = 262144, 1536, 256, 512, 512, 256
TARGET = {"layers": 35, "shared": 20, "heads": 8, "period": 5, "ffn": [6144] * 15 + [12288] * 20, "width": HIDDEN}
ASSISTANT = {"layers": 4, "shared": 4, "heads": 4, "period": 4, "ffn": [2048] * 4, "width": 256}
# Standard deviation of a block's codes for random bytes, by which its scale is divided.
DEVIATION = {Type.Q4_K: 270, Type.Q6_K: 1370, Type.Q8_0: 74}
POOL = np.random.default_rng(0).integers(0, 256, 1 << 24, np.uint8)


def assistant_pair(folder: Path, outtype: str) -> tuple[Path, Path]:
    """Return the target, in Q4_K_M or Q8_0, and its assistant, written now if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    target, draft = folder / f"gemma-4-e2b-{outtype}.gguf", folder / "mtp-gemma-4-e2b-q8_0.gguf"
    if not target.is_file():
        wide = (Type.Q4_K, Type.Q6_K) if outtype == "q4_k_m" else (Type.Q8_0, Type.Q8_0)
        _write(target, "gemma4", TARGET, wide)
    if not draft.is_file():
        _write(draft, "gemma4-assistant", ASSISTANT, (Type.Q8_0, Type.Q8_0))
    return target, draft


def _write(path: Path, arch: str, shape: dict[str, Any], types: tuple[Type, Type]) -> None:
    writer, is_target = gguf.GGUFWriter(path, arch), arch == "gemma4"
    _add_settings(writer, shape, is_target)
    _add_tokenizer(writer)
    ones = lambda n: np.ones(n, np.float32)  # noqa: E731
    rotated = np.array([1.0] * (FULL_HEAD // 8) + [1e30] * (3 * FULL_HEAD // 8), np.float32)
    writer.add_tensor("rope_freqs.weight", rotated)
    writer.add_tensor("output_norm.weight", ones(shape["width"]))
    for name, rows, columns, kind in _matrices(shape, types, is_target):
        writer.add_tensor(name, random_blocks(rows, columns, kind), raw_dtype=kind)
    for i in range(shape["layers"]):
        head = HEAD if _is_windowed(shape, i) else FULL_HEAD
        norms = dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), shape["width"])
        norms |= {"attn_q_norm": head, "layer_output_scale": 1}
        if is_target:
            norms |= {"post_norm": shape["width"]} | (
                {"attn_k_norm": head} if i < shape["layers"] - shape["shared"] else {}
            )
        for name, n in norms.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", ones(n))
    if is_target:
        writer.add_tensor("per_layer_proj_norm.weight", ones(PER_LAYER))
        projection = np.zeros((PER_LAYER * shape["layers"], 2 * HIDDEN), np.uint8)  # BF16 in published files, too
        writer.add_tensor("per_layer_model_proj.weight", projection, raw_dtype=Type.BF16)
    partial = path.with_suffix(".part")
    writer.path = partial
    writer.write_header_to_file(partial)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _is_windowed(shape: dict[str, Any], layer: int) -> bool:
    return bool((layer + 1) % shape["period"])


def _matrices(shape: dict[str, Any], types: tuple[Type, Type], is_target: bool) -> list[tuple[str, int, int, Type]]:
    """Return name, rows, columns and type of each matrix. types: the usual one, and that of wider tensors."""
    usual, wide = types
    width, n = shape["width"], shape["layers"]
    found = [("token_embd.weight", N_VOCAB, width, wide)]
    if is_target:
        found.append(("per_layer_token_embd.weight", N_VOCAB, PER_LAYER * n, usual))
    else:
        found.append(("nextn.pre_projection.weight", width, 2 * HIDDEN, usual))
        found.append(("nextn.post_projection.weight", HIDDEN, width, usual))
    for i in range(n):
        head = HEAD if _is_windowed(shape, i) else FULL_HEAD
        ffn, queries = shape["ffn"][i], shape["heads"] * head
        more = wide if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else usual
        parts = [("attn_q", queries, width, usual), ("attn_output", width, queries, usual)]
        parts += [("ffn_gate", ffn, width, usual), ("ffn_up", ffn, width, usual), ("ffn_down", width, ffn, more)]
        if is_target:
            parts += [("inp_gate", PER_LAYER, width, usual), ("proj", width, PER_LAYER, usual)]
        if is_target and i < n - shape["shared"]:
            parts += [("attn_k", head, width, usual), ("attn_v", head, width, more)]
        found += [(f"blk.{i}.{name}.weight", *rest) for name, *rest in parts]
    return found


def random_blocks(rows: int, columns: int, kind: Type) -> NDArray[np.uint8]:
    """Return random blocks whose values have a standard deviation of about 1 / sqrt(columns)."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n = rows * columns // block
    data = np.resize(POOL[: len(POOL) // size * size], n * size).reshape(n, size)
    scale = np.float16(columns**-0.5 / DEVIATION[kind])
    if kind == Type.Q4_K:  # the mean of a code is 7.5
        data[:, :4] = np.array([scale, np.float16(7.5) * scale]).view(np.uint8)
    elif kind == Type.Q6_K:
        data[:, -2:] = np.array([scale]).view(np.uint8)
    else:
        data[:, :2] = np.array([scale]).view(np.uint8)
    return data.reshape(rows, -1)


def _add_settings(writer: gguf.GGUFWriter, shape: dict[str, Any], is_target: bool) -> None:
    n = shape["layers"]
    writer.add_block_count(n)
    writer.add_context_length(131072)
    writer.add_embedding_length(shape["width"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    for length in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        length(FULL_HEAD)
    for length in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        length(HEAD)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([_is_windowed(shape, i) for i in range(n)])
    writer.add_shared_kv_layers(shape["shared"])
    writer.add_embedding_length_per_layer_input(PER_LAYER if is_target else 0)
    if is_target:
        writer.add_final_logit_softcapping(30.0)
    else:
        writer.add_embedding_length_out(HIDDEN)
        writer.add_nextn_predict_layers(n)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256)), "▁", *"ABC"]
    tokens += [f"▁{i}" for i in range(N_VOCAB - len(tokens))]
    kinds = [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (N_VOCAB - 260)
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * N_VOCAB)
    writer.add_token_types(kinds)
    writer.add_token_merges(["▁ A"])
    for add, token in ((writer.add_pad_token_id, 0), (writer.add_eos_token_id, 1), (writer.add_bos_token_id, 2)):
        add(token)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)
