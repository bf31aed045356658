"""A converted draft run from its GGUF as llama.cpp's eagle3 graph does: interleaved rotation, ggml's RoPE and YaRN.

Written from upstream's loader and graph, with the additions of the extended layout. NumPy in float64, so that
differences to the torch reference are the converter's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class GGUFDraft:
    """embedding [V, H] and head [V, H]: the target's, for drafts that store none."""

    def __init__(self, path: Path, embedding: np.ndarray | None = None, head: np.ndarray | None = None) -> None:
        reader = gguf.GGUFReader(path)
        self.keys: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        self.w = {t.name: gguf.dequantize(t.data, t.tensor_type) if "I" not in t.tensor_type.name else t.data
                  for t in reader.tensors}  # fmt: skip
        self.ne = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
        self.embedding = self.w.get("token_embd.weight", embedding)
        self.head = self.w.get("output.weight", head)
        self.n_head, self.n_kv = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.head_dim = self.key("attention.key_length", self.key("embedding_length") // self.n_head)
        self.n_rot = self.key("rope.dimension_count", self.head_dim)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.n_layer = self.key("block_count")
        windowed = self.key("attention.sliding_window_pattern", [False] * self.n_layer)
        self.windows = [self.key("attention.sliding_window") if one else 0 for one in windowed]
        self.kv: list[list[np.ndarray]] = [[] for _ in range(2 * self.n_layer)]

    def key(self, name: str, default: Any = None) -> Any:
        return self.keys.get(f"eagle3.{name}", default)

    def stock_faults(self) -> list[str]:
        """Why stock llama.cpp would refuse the file or abort on it; empty if it runs it."""
        hidden, head = self.key("embedding_length"), self.head_dim
        aux = 3 * self.key("target_hidden_size")
        n_vocab = len(self.keys["tokenizer.ggml.tokens"])
        n_draft = self.ne["d2t"][0] if "d2t" in self.ne else n_vocab
        ffn, q, kv = self.key("feed_forward_length"), self.n_head * head, self.n_kv * head
        want = {"fc.weight": (aux, hidden), "output_norm.weight": (hidden,)}
        shapes = ((hidden,), (2 * hidden, q), (2 * hidden, kv), (2 * hidden, kv), (q, hidden), (hidden,),
                  (hidden, ffn), (hidden, ffn), (ffn, hidden))  # fmt: skip
        want |= {f"blk.0.{name}.weight": shape for name, shape in zip(LAYER, shapes, strict=True)}
        want["blk.0.attn_norm_2.weight"] = (hidden,)
        if self.key("norm_before_fc", False):
            want["enc.output_norm.weight"] = (aux,)
        optional = {"output.weight": (hidden, n_draft), "token_embd.weight": (hidden, n_vocab), "d2t": (n_draft,),
                    "rope_freqs.weight": (self.n_rot // 2,)}  # fmt: skip
        want |= {name: shape for name, shape in optional.items() if name in self.ne}
        faults = [f"{name} is {self.ne.get(name)}, not {shape}" for name, shape in want.items()
                  if self.ne.get(name) != shape]  # fmt: skip
        faults += [f"{name} is unknown" for name in self.ne if name not in want]
        faults += [f"{name} is {self.types[name]}" for name in self.ne if len(self.ne[name]) == 1
                   and self.types[name] != ("I64" if name == "d2t" else "F32")]  # fmt: skip
        if len(self.key("target_layers")) != 3 or self.n_layer != 1:
            faults.append("three layer ids and one block are expected")
        return faults

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = self.w[f"{name}.weight"].astype(np.float64) @ x
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def fuse(self, features: np.ndarray) -> np.ndarray:
        if "fc_norm.0.weight" in self.w:
            parts = np.split(features, len(self.key("target_layers")))
            features = np.concatenate([self.norm(p, f"fc_norm.{i}.weight") for i, p in enumerate(parts)])
        if self.key("norm_before_fc", False):
            features = self.norm(features, "enc.output_norm.weight")
        return self.linear(features, "fc")

    def slot(self, token: int, hidden: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray, int]:
        """(logits [D], hidden for the next step, drafted target id) of one more slot."""
        assert self.embedding is not None and self.head is not None
        x = hidden
        for i in range(self.n_layer):
            at = f"blk.{i}."
            residual, y = x, self.norm(self.embedding[token] if i == 0 else x, at + "attn_norm.weight")
            if i == 0:
                normed = self.norm(hidden, at + "attn_norm_2.weight")
                y = np.concatenate([y, normed])
                residual = normed if self.key("norm_before_residual", False) else hidden
            x = residual + self.attention(i, y, position)
            y = self.norm(x, at + "ffn_norm.weight")
            gate, up = self.linear(y, at + "ffn_gate"), self.linear(y, at + "ffn_up")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, at + "ffn_down")
        normed = self.norm(x, "output_norm.weight")
        logits = self.head.astype(np.float64) @ normed
        best = int(logits.argmax())
        token = int(self.w["d2t"][best]) if "d2t" in self.w else best
        return logits, normed if self.key("norm_output", False) else x, token

    def attention(self, layer: int, y: np.ndarray, position: int) -> np.ndarray:
        at = f"blk.{layer}.attn_"
        heads = {"q": self.n_head, "k": self.n_kv, "v": self.n_kv}
        q, k, v = (self.linear(y, at + n).reshape(heads[n], self.head_dim) for n in "qkv")
        q, k = (self.norm(x, f"{at}{n}_norm.weight") if f"{at}{n}_norm.weight" in self.w else x
                for n, x in (("q", q), ("k", k)))  # fmt: skip
        keys, values = self.kv[2 * layer], self.kv[2 * layer + 1]
        keys.append(self.rotate(k, position))
        values.append(v)
        keys, values = keys[-self.windows[layer] :], values[-self.windows[layer] :]
        q = self.rotate(q, position)
        out = np.empty((self.n_head, self.head_dim))
        for head in range(self.n_head):
            pair = head // (self.n_head // self.n_kv)
            scores = np.array([q[head] @ key[pair] for key in keys]) / math.sqrt(self.head_dim)
            weights = np.exp(scores - scores.max())
            out[head] = sum(w * value[pair] for w, value in zip(weights / weights.sum(), values, strict=True))
        return self.linear(out.reshape(-1), at + "output")

    def rotate(self, x: np.ndarray, position: int) -> np.ndarray:
        """ggml_rope_ext, GGML_ROPE_TYPE_NORMAL: pairs (2i, 2i + 1), as llama_context sets its parameters."""
        base, n_rot = self.key("rope.freq_base", 10000.0), self.n_rot
        kind = self.key("rope.scaling.type", "linear")
        scale = 1.0 if kind == "none" else 1.0 / (self.key("rope.scaling.factor") or 1.0)
        magnitude = self.key("rope.scaling.attn_factor", 1.0)
        index = np.arange(n_rot // 2)
        extrapolated = position * base ** (-2.0 * index / n_rot) / self.w.get("rope_freqs.weight", 1.0)
        angle = scale * extrapolated
        if kind == "yarn":
            n_orig = self.key("rope.scaling.original_context_length", self.key("context_length"))
            low, high = (n_rot * math.log(n_orig / (beta * 2 * math.pi)) / (2 * math.log(base)) for beta in (32.0, 1.0))
            low, high = max(0, math.floor(low)), min(n_rot - 1, math.ceil(high))
            mix = 1 - np.clip((index - low) / max(0.001, high - low), 0, 1)
            angle = angle * (1 - mix) + extrapolated * mix
            magnitude *= 1 + 0.1 * math.log(1 / scale)
        cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
        out = x.copy()
        even, odd = x[:, 0:n_rot:2], x[:, 1:n_rot:2]
        out[:, 0:n_rot:2], out[:, 1:n_rot:2] = even * cos - odd * sin, even * sin + odd * cos
        return out
