"""Recorder for tree simulations: rank of the target's token in a draft, at every place of the target's own answers.

    python bench/studies/trees/record.py TARGET.gguf DRAFT.gguf|mtp -o TRACE.npz [--data chat,lookup] [-n 256]

The target answers greedily. Torch then runs the draft over each answer, a depth at a time, on the answer's own tokens,
like the branch of a tree that follows the answer. The trace holds, for a round that begins at each token, the rank of
the next tokens and the largest probabilities of each depth, and the number of tokens that prompt look-up proposed and
of those that were right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from llama_eagle.bench.prompts import Prompt, read_prompts, take
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.generation.run import Run, decode
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.tensors import read_rows
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import MTP, PairOptions
from llama_eagle.sessions.text import Tokenizer, chat_text
from llama_eagle.train.model import Eagle3Draft, Geometry
from llama_eagle.train.mtp.head import MTPHead, make_head
from llama_eagle.train.targets.engine import EngineTarget, EngineTargetInfo, read_engine_target
from numpy.typing import NDArray

DEPTH = 8  # longest path
TOP = 16  # ranks that are kept
LOOKUP = 16  # tokens that prompt look-up may propose
BLOCK = {
    "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


@dataclass(frozen=True)
class Drafting:
    """A draft in torch. embedding, head: of the target, [V, H]; ids: target id of each row of the draft's head, [D]."""

    draft: Eagle3Draft | MTPHead
    embedding: torch.Tensor
    head: torch.Tensor
    ids: torch.Tensor


def eagle3(parts: list[Header], target: EngineTarget) -> Drafting:
    """Return an EAGLE-3 draft of one block. Its embeddings are the target's."""
    header, frozen = parts[0], target.frozen()

    def key(name: str) -> float:
        return header.arch_key(name)

    def values(name: str) -> NDArray[np.float32] | None:
        return read_rows(parts, name)

    head = values("output.weight")
    ids_tensor = _ids(header) if "d2t" in header.tensors else torch.arange(header.n_vocab)
    n_head, width = int(key("attention.head_count")), int(key("embedding_length"))
    geometry = Geometry(
        hidden_size=width,
        n_head=n_head,
        n_head_kv=int(key("attention.head_count_kv")),
        head_dim=int(header.arch_key("attention.key_length", width // n_head)),
        ffn_size=int(key("feed_forward_length")),
        n_vocab=header.n_vocab,
        n_vocab_draft=len(ids_tensor),
        n_aux=len(header.arch_key("target_layers")),
        n_ctx=int(key("context_length")),
        rms_eps=float(key("attention.layer_norm_rms_epsilon")),
        rope_base=float(header.arch_key("rope.freq_base", 10000.0)),
        norm_before_residual=bool(header.arch_key("norm_before_residual", False)),
        norm_output=bool(header.arch_key("norm_output", False)),
    )
    tensors = {"fc.weight": values("fc.weight"), "norm.weight": values("output_norm.weight")}
    tensors |= {f"midlayer.{name}.weight": values(f"blk.0.{stored}.weight") for name, stored in BLOCK.items()}
    for name in ("q", "k"):
        place = f"midlayer.self_attn.{name}_proj.weight"
        tensors[place] = _halves(tensors[place], geometry.head_dim)
    tensors["lm_head.weight"] = frozen.head[ids_tensor].numpy() if head is None else head
    draft = Eagle3Draft(geometry)
    draft.load_state_dict(
        {name: torch.tensor(value).view_as(draft.state_dict()[name]) for name, value in tensors.items()}
    )
    return Drafting(draft, frozen.embedding, frozen.head, ids_tensor)


def _ids(header: Header) -> torch.Tensor:
    info = header.tensors["d2t"]
    stored = np.memmap(header.path, np.int64, "r", header.data_offset + info.offset, (info.n_elements,))
    return torch.tensor(np.array(stored))


def _halves(weight: NDArray[np.float32] | None, head_dim: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of rotated rows: pairs side by side become two halves of a head."""
    assert weight is not None
    n_in = weight.shape[1]
    return weight.reshape(-1, head_dim // 2, 2, n_in).swapaxes(1, 2).reshape(weight.shape)


def mtp_head(info: EngineTargetInfo, target: EngineTarget) -> Drafting:
    frozen = target.frozen()
    ids = torch.arange(len(frozen.head))
    return Drafting(make_head(info, frozen, ids, 0), frozen.embedding, frozen.head, ids)


def answers(target: Path, prompts: list[Prompt], n: int, threads: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield category, prompt and answer of the first turn of each prompt."""
    with ModelPair(PairOptions(target, None)) as pair:
        tokenizer = Tokenizer(pair.target)
        for number, prompt in enumerate(prompts):
            message = [*prompt.messages, *({"role": "user", "content": turn} for turn in prompt.turns[:1])]
            text = prompt.text or chat_text(pair.target, message)
            ids = tokenizer.encode(text, add_bos=prompt.text is not None)
            found = decode(pair, ids, Run(n, threads, ignore_eos=False)).tokens
            print(f"{number + 1}/{len(prompts)} {prompt.category}: {len(found)} tokens", file=sys.stderr)
            yield prompt.category, ids, list(found)


def ranks(drafting: Drafting, target: EngineTarget, tokens: list[int], start: int) -> tuple[NDArray, NDArray]:
    """Return ranks [P, DEPTH] and the TOP largest probabilities [P, DEPTH, TOP] of rounds from tokens[start - 1] on."""
    n_places = len(tokens) - start
    rank = np.full((n_places, DEPTH), TOP, np.uint8)
    top = np.zeros((n_places, DEPTH, TOP), np.float32)
    features, final, _ = target.run(tokens)
    ids = torch.tensor(tokens)
    with torch.no_grad():
        steps = drafting.draft.unroll(drafting.embedding[ids][None], features[None], final[None], DEPTH)
        for k, hidden in enumerate(steps):
            # Slot i of step k predicts token i + 2 + k; the first round begins behind token start - 1.
            first = start - 2
            rows = drafting.draft.norm(hidden[0, first:])
            logits = rows @ drafting.draft.lm_head.weight.T
            best = logits.softmax(-1).topk(min(TOP, logits.shape[-1]))
            is_right = drafting.ids[best.indices] == ids[first + 2 + k :][: len(rows), None]
            n = len(rows)
            rank[:n, k] = torch.where(is_right.any(-1), is_right.int().argmax(-1), TOP).numpy()
            top[:n, k, : best.values.shape[1]] = best.values.numpy()
    return rank, top


def looked_up(prompt: list[int], answer: list[int]) -> NDArray[np.uint8]:
    """Return for a round behind each token how many tokens look-up proposes, and how many of them are right, [P, 2]."""
    lookup, found = PromptLookup(), np.zeros((len(answer), 2), np.uint8)
    lookup.begin(prompt[:-1])
    text = [prompt[-1], *answer]
    for place in range(len(answer)):
        proposed = lookup.draft(text[place], LOOKUP)
        right = 0
        while right < min(len(proposed), len(answer) - place) and proposed[right] == answer[place + right]:
            right += 1
        found[place] = len(proposed), right
        lookup.accept([text[place]])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", help="GGUF of an EAGLE-3 draft, or mtp")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--data", default="chat,lookup", help="prompt files (default: chat,lookup)")
    parser.add_argument("--limit", type=int, default=0, help="prompts of each category (default: all)")
    parser.add_argument("-n", type=int, default=256, help="tokens per answer (default: 256)")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    parts = None if args.draft == MTP else read_model(args.draft)[1]
    info = read_engine_target(str(args.target), parts[0].arch_key("target_layers") if parts else None)
    texts = list(answers(args.target, take(read_prompts(args.data.split(",")), args.limit), args.n, args.threads))
    target = EngineTarget(info, max(len(prompt) + len(answer) for _, prompt, answer in texts))
    drafting = eagle3(parts, target) if parts else mtp_head(info, target)
    found = [
        (*ranks(drafting, target, prompt + answer, len(prompt)), looked_up(prompt, answer))
        for _, prompt, answer in texts
    ]
    rank, top, lookup = (np.concatenate(each) for each in zip(*found, strict=True))
    kinds = np.concatenate([[kind] * len(answer) for kind, _, answer in texts])
    numbers = np.concatenate([[i] * len(answer) for i, (_, _, answer) in enumerate(texts)])
    np.savez_compressed(args.out, rank=rank, top=top, lookup=lookup, category=kinds, answer=numbers)
    print(f"{len(rank)} places of {len(texts)} answers in {args.out}")


if __name__ == "__main__":
    main()
