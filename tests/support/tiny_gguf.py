"""A tiny Qwen3.5-shaped target and EAGLE-3 draft, written straight to GGUF, whose text is known in advance.

The target's blocks add nothing to the residual stream, so the head sees the token's embedding and names the successor
of each byte: a b c … z a b c, and A B C … Z followed by the end token. The draft's block adds nothing either: from the
feature of the token before last it names the second successor, so its first token is always right; fed back unchanged
it names the same token again, so its second is always wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

N_BYTES = 256
END, START = 256, 257  # <|im_end|>, <|im_start|>
N_VOCAB = 272
HIDDEN = 64
HEAD_SIZE = 32
FFN = 96
LAYERS = 4
STATE = 32
LINEAR_HEADS = 2
CONTEXT = 2048
NAMED = " \n.,:!?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # bytes whose successor the head knows
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def successor(token: int) -> int:
    """The byte that follows: letters run in their alphabet, Z ends, everything else in NAMED leads to a."""
    if ord("a") <= token <= ord("z"):
        return ord("a") + (token - ord("a") + 1) % 26
    if ord("A") <= token < ord("Z"):
        return token + 1
    return END if token == ord("Z") else ord("a")


def byte_token(value: int) -> str:
    """The GPT-2 alphabet: printable bytes stand for themselves, others are moved above 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if value in printable:
        return chr(value)
    others = [i for i in range(N_BYTES) if i not in printable]
    return chr(N_BYTES + others.index(value))


@dataclass(frozen=True)
class Variant:
    """What the tests for bad input change."""

    hidden: int = HIDDEN
    n_vocab: int = N_VOCAB
    target_layers: tuple[int, ...] = (1, 2, 3)
    seed: int = 1
    sharpness: float = 24.0  # of the target's choice: the right logit
    first_token: str | None = None  # renames token 33


def embeddings(variant: Variant) -> np.ndarray:
    """[n_vocab, hidden] f32, rows of root mean square 1."""
    rows = np.random.default_rng(7).standard_normal((variant.n_vocab, variant.hidden))
    return (rows / np.sqrt((rows**2).mean(axis=1, keepdims=True))).astype(np.float32)


def write_target(path: Path, variant: Variant = Variant()) -> Path:  # noqa: B008 (frozen)
    rng = np.random.default_rng(variant.seed)
    writer = gguf.GGUFWriter(path, "qwen35")
    _add_tokenizer(writer, variant)
    _add_common(writer, variant, LAYERS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(16)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(STATE * LINEAR_HEADS)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(LINEAR_HEADS)
    writer.add_ssm_group_count(LINEAR_HEADS)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    embedding = embeddings(variant)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", np.ones(variant.hidden, np.float32))
    writer.add_tensor("output.weight", _head(embedding, [successor(i) for i in range(N_BYTES)], variant))
    for layer in range(LAYERS):
        for name, tensor in _block(rng, variant.hidden, recurrent=(layer + 1) % 4 != 0).items():
            writer.add_tensor(f"blk.{layer}.{name}", tensor)
    return _finish(writer, path)


def write_draft(path: Path, variant: Variant = Variant()) -> Path:  # noqa: B008
    rng = np.random.default_rng(variant.seed + 1)
    hidden, heads, head_size = variant.hidden, 2, variant.hidden // 2
    writer = gguf.GGUFWriter(path, "eagle3")
    _add_tokenizer(writer, variant)
    _add_common(writer, variant, 1)
    writer.add_uint32("eagle3.vocab_size", variant.n_vocab)
    writer.add_array("eagle3.target_layers", list(variant.target_layers))
    writer.add_uint32("eagle3.target_hidden_size", hidden)
    embedding = embeddings(variant)
    ids = [*range(65, 91), *range(97, 123), END, START]  # the draft's vocabulary: letters and control tokens
    fusion = np.concatenate([np.eye(hidden), *[np.zeros((hidden, hidden))] * (len(variant.target_layers) - 1)], axis=1)
    writer.add_tensor("fc.weight", fusion.astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    head = _head(embedding, [successor(successor(i) % N_BYTES) for i in range(N_BYTES)], variant)
    writer.add_tensor("output.weight", np.ascontiguousarray(head[ids]))
    writer.add_tensor("d2t", np.array(ids, np.int64))
    shapes = {
        "attn_q": (heads * head_size, 2 * hidden),
        "attn_k": (heads * head_size, 2 * hidden),
        "attn_v": (heads * head_size, 2 * hidden),
        "ffn_gate": (FFN, hidden),
        "ffn_up": (FFN, hidden),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.0.{name}.weight", _noise(rng, shape))
    writer.add_tensor("blk.0.attn_output.weight", np.zeros((hidden, heads * head_size), np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((hidden, FFN), np.float32))
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(hidden, np.float32))
    return _finish(writer, path)


def _head(embedding: np.ndarray, named: list[int], variant: Variant) -> np.ndarray:
    """Rows that answer the normed embedding of each byte with the byte it is mapped to."""
    head = np.zeros((variant.n_vocab, variant.hidden), np.float32)
    for token, target in enumerate(named):
        if chr(token) in NAMED and target < variant.n_vocab:
            head[target] += embedding[token] * (variant.sharpness / variant.hidden)
    return head


def _block(rng: np.random.Generator, hidden: int, *, recurrent: bool) -> dict[str, np.ndarray]:
    inner = STATE * LINEAR_HEADS
    tensors = {
        "attn_norm.weight": np.ones(hidden, np.float32),
        "post_attention_norm.weight": np.ones(hidden, np.float32),
        "ffn_gate.weight": _noise(rng, (FFN, hidden)),
        "ffn_up.weight": _noise(rng, (FFN, hidden)),
        "ffn_down.weight": np.zeros((hidden, FFN), np.float32),
    }
    if recurrent:
        return tensors | {
            "attn_qkv.weight": _noise(rng, (3 * inner, hidden)),
            "attn_gate.weight": _noise(rng, (inner, hidden)),
            "ssm_conv1d.weight": _noise(rng, (3 * inner, 4)),
            "ssm_dt.bias": np.ones(LINEAR_HEADS, np.float32),
            "ssm_a": -np.ones(LINEAR_HEADS, np.float32),
            "ssm_beta.weight": _noise(rng, (LINEAR_HEADS, hidden)),
            "ssm_alpha.weight": _noise(rng, (LINEAR_HEADS, hidden)),
            "ssm_norm.weight": np.ones(STATE, np.float32),
            "ssm_out.weight": np.zeros((hidden, inner), np.float32),
        }
    return tensors | {
        "attn_q.weight": _noise(rng, (2 * 2 * HEAD_SIZE, hidden)),
        "attn_k.weight": _noise(rng, (HEAD_SIZE, hidden)),
        "attn_v.weight": _noise(rng, (HEAD_SIZE, hidden)),
        "attn_output.weight": np.zeros((hidden, 2 * HEAD_SIZE), np.float32),
        "attn_q_norm.weight": np.ones(HEAD_SIZE, np.float32),
        "attn_k_norm.weight": np.ones(HEAD_SIZE, np.float32),
    }


def _noise(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _add_common(writer: gguf.GGUFWriter, variant: Variant, layers: int) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_block_count(layers)
    writer.add_embedding_length(variant.hidden)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2 if writer.arch == "eagle3" else 1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)


def _add_tokenizer(writer: gguf.GGUFWriter, variant: Variant) -> None:
    tokens = [byte_token(i) for i in range(N_BYTES)] + ["<|im_end|>", "<|im_start|>"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), variant.n_vocab)]
    tokens = tokens[: variant.n_vocab]
    types = [gguf.TokenType.NORMAL] * N_BYTES + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.UNUSED] * N_VOCAB
    if variant.first_token is not None:
        tokens[33] = variant.first_token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types[: len(tokens)])
    writer.add_token_merges([f"{byte_token(0)} {byte_token(0)}"])
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
