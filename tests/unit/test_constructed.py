"""The constructed pair says what its tables say: checked with transformers and a plain EAGLE-3 head in torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llama_eagle.synthetic import weights
from llama_eagle.synthetic.constructed import BLOCK_GAIN, EMBEDDING_RMS, Pair, write_pair, write_target
from llama_eagle.synthetic.cycle import N_BYTES, Cycle, word
from llama_eagle.synthetic.shapes import SHAPES, Experts
from llama_eagle.synthetic.weights import bf16
from parity.mtp_reference import MTPReference, TargetStates, load_tensors
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, silu

ACCEPT = 0.7
N_DRAFT = 5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"), "tiny", ACCEPT)


@pytest.fixture(scope="module")
def target(pair: Pair) -> Any:
    from transformers import Qwen3_5ForCausalLM

    return Qwen3_5ForCausalLM.from_pretrained(pair.target, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(pair: Pair) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pair.target)


# --- the tables -------------------------------------------------------------------------------------------------------


def test_words_count_like_spreadsheet_columns() -> None:
    assert [word(i) for i in (0, 25, 26, 51, 701, 702)] == ["A", "Z", "AA", "AZ", "ZZ", "AAA"]


@pytest.mark.parametrize("accept", [0.0, 0.1, 0.5, 0.7, 0.9, 0.99, 1.0])
def test_draft_errs_as_often_as_asked(accept: float) -> None:
    cycle = Cycle(40000, 32000, accept, seed=3)
    right = cycle.draft_next_ids[cycle.ids] == cycle.next_ids[cycle.ids]
    assert right.mean() == pytest.approx(accept, abs=0.005)
    assert sorted(cycle.draft_next_ids[cycle.ids]) == sorted(cycle.ids)  # every prediction is in the draft's vocabulary


@pytest.mark.parametrize("n_draft", [1, 3, 7])
def test_accepted_per_position_is_flat(n_draft: int) -> None:
    cycle = Cycle(40000, 32000, ACCEPT, seed=0)
    rounds = cycle.simulate(cycle.start, 32000, n_draft)
    assert rounds.accepted_per_position == pytest.approx([ACCEPT] * n_draft, abs=0.03)
    assert rounds.accept_rate == pytest.approx(cycle.expected_accept_rate(n_draft), abs=0.01)
    assert rounds.mean_emitted == pytest.approx(cycle.expected_mean_emitted(n_draft), abs=0.05)


def test_bf16_rounds_to_nearest_even() -> None:
    values = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    values[:2] = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)  # ties
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(bf16(values).view(np.int16), expected)


# --- the files --------------------------------------------------------------------------------------------------------


def test_same_arguments_same_bytes(pair: Pair, tmp_path: Path) -> None:
    again = write_pair(tmp_path, "tiny", ACCEPT)
    for one, two in ((pair.target, again.target), (pair.draft, again.draft)):
        assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in two.iterdir()}


def test_shards_hold_the_same_tensors(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_eagle.synthetic.weights.SHARD_BYTES", 4 << 20)
    monkeypatch.setattr("llama_eagle.synthetic.weights.BLOCK_VALUES", 1000)
    sharded = write_pair(tmp_path, "tiny", ACCEPT).target
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    whole = load_file(pair.target / "model.safetensors")
    assert set(index["weight_map"]) == set(whole)
    assert len(set(index["weight_map"].values())) > 2
    for name in set(index["weight_map"].values()):
        assert all(torch.equal(value, whole[key]) for key, value in load_file(sharded / name).items())


def test_a_matrix_is_made_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the large shapes do not fit into memory."""
    monkeypatch.setattr(weights, "BLOCK_VALUES", 100)
    numbers, made = np.arange(300, dtype=np.int64).reshape(10, 30), []
    matrix = weights.Tensor("a", (10, 30), lambda low, high: (made.append(high - low), numbers[low:high])[1], "I64")
    weights.write_checkpoint(tmp_path, [matrix])
    assert made == [3, 3, 3, 1]
    assert np.array_equal(load_file(tmp_path / "model.safetensors")["a"], numbers)


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_leave_no_rotary_pair_over(name: str) -> None:
    shape = SHAPES[name]
    pairs, sections = shape.head_dim // 8, shape.mrope_section
    assert sum(sections) == pairs
    assert all(pair < 3 * sections[pair % 3] for pair in range(pairs))


def test_vocabulary_map_is_consistent(pair: Pair) -> None:
    draft = load_file(pair.draft / "model.safetensors")
    ids = torch.arange(len(draft["d2t"])) + draft["d2t"]
    assert torch.equal(ids, draft["t2d"].nonzero()[:, 0])
    assert len(set(draft["d2t"].tolist())) > 100  # the ids lie scattered


# --- the target -------------------------------------------------------------------------------------------------------


def test_checkpoint_loads_without_remainder(pair: Pair) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(pair.target)
    model, info = AutoModelForCausalLM.from_pretrained(pair.target, output_loading_info=True)
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert config.layer_types[:4] == ["linear_attention"] * 3 + ["full_attention"]
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize("mtp", [False, True], ids=["", "mtp"])
def test_a_mixture_says_the_same_and_its_rows_use_different_experts(tmp_path: Path, mtp: bool) -> None:
    """Its routing is nearly random: five rows of a text touch nearly as many experts as five texts would."""
    from transformers import AutoModelForCausalLM

    shape = replace(SHAPES["tiny"], layers=4, experts=Experts(32, 2, 64, 96))
    cycle = Cycle(shape.n_vocab, shape.n_draft_vocab, ACCEPT, 0, mtp=mtp)
    write_target(tmp_path, shape, cycle, 0)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert type(model).__name__ == "Qwen3_5MoeForCausalLM"
    assert not any(info[key] for key in ("missing_keys", "mismatched_keys"))
    tokens = cycle.expected_tokens(cycle.start, 40)
    routed: list[Tensor] = []
    model.model.layers[0].mlp.gate.register_forward_hook(lambda *call: routed.append(call[2][-1]))
    with torch.no_grad():
        logits = model(torch.tensor([[cycle.start, *tokens]])).logits[0]
    assert logits.argmax(-1)[:-1].tolist() == tokens
    touched = [len(set(routed[0][i : i + 5].flatten().tolist())) for i in range(0, 40, 5)]
    expected = 32 * (1 - (1 - 2 / 32) ** 5)
    assert np.mean(touched) == pytest.approx(expected, rel=0.15)
    mlp, rows = model.model.layers[0].mlp, torch.randn(100, shape.hidden, generator=torch.Generator().manual_seed(0))
    gate, up = (rows @ mlp.experts.gate_up_proj.mT).chunk(2, -1)
    added = [
        y.square().mean().sqrt().item() for y in ((silu(gate) * up) @ mlp.experts.down_proj.mT, mlp.shared_expert(rows))
    ]
    assert added == pytest.approx([BLOCK_GAIN * EMBEDDING_RMS] * 2, rel=0.05)


def test_tokenizer_round_trip(pair: Pair, tokenizer: Any) -> None:
    cycle = pair.cycle
    text = cycle.expected_text(cycle.special_ids["<|im_start|>"], 800)
    assert text.startswith(" A B C")
    assert tokenizer.encode(text) == cycle.expected_tokens(0, 800)
    mixed = "Count: A B, 12 naïve\n"
    assert tokenizer.decode(tokenizer.encode(mixed)) == mixed
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Count!"}], add_generation_prompt=True)
    assert chat["input_ids"][0] == cycle.special_ids["<|im_start|>"]
    assert cycle.expected_next(chat["input_ids"][-1]) == cycle.start


@pytest.mark.parametrize(("dtype", "n_rows"), [(torch.float32, 16), (torch.bfloat16, 4)])
def test_target_predicts_the_cycle_from_every_id(pair: Pair, target: Any, dtype: torch.dtype, n_rows: int) -> None:
    """In BF16, which this is slow in, from a quarter of them."""
    ids = np.random.default_rng(1).permutation(pair.cycle.n_vocab)
    margins = []
    for row in torch.from_numpy(ids).view(16, -1)[:n_rows]:
        with torch.no_grad():
            logits = target.to(dtype)(row[None]).logits[0].float()
        assert logits.argmax(-1).tolist() == pair.cycle.next_ids[row].tolist()
        top = logits.topk(2).values
        margins.append((top[:, 0] - top[:, 1]).min().item())
    target.to(torch.float32)
    assert min(margins) > 10


def test_target_greedy_text(pair: Pair, target: Any, tokenizer: Any) -> None:
    prompt = tokenizer("Count: A B C", return_tensors="pt").input_ids
    with torch.no_grad():
        tokens = target.generate(prompt, max_new_tokens=40, do_sample=False)[0, prompt.shape[1] :]
    assert tokens.tolist() == pair.cycle.expected_tokens(int(prompt[0, -1]), 40)
    assert tokenizer.decode(tokens).startswith(" D E F G")


def test_history_shows_in_the_logits(target: Any) -> None:
    """A lost recurrent state or key must not go unseen: the last row depends on the tokens before it."""
    with torch.no_grad():
        one = target(torch.tensor([[300, 301, 302, 303]])).logits[0, -1]
        two = target(torch.tensor([[400, 301, 302, 303]])).logits[0, -1]
    assert (one - two).abs().max() > 1e-3


# --- the draft --------------------------------------------------------------------------------------------------------


class Head:
    """A plain EAGLE-3 head after EAGLE3-FORMATS: one sequence, keys and values in lists, no batching."""

    def __init__(self, folder: Path, embedding: Tensor, dtype: torch.dtype) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.w = {name: value.to(dtype) if value.is_floating_point() else value for name, value in weights.items()}
        self.embedding = embedding.to(dtype)
        self.ids = torch.arange(len(self.w["d2t"])) + self.w["d2t"]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (x.float() * scale).to(x.dtype) * self.w[f"{name}.weight"]

    def rotate(self, x: Tensor, position: int) -> Tensor:
        half = x.shape[-1] // 2
        angle = position / self.config["rope_theta"] ** (torch.arange(half) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def step(self, token: int, hidden: Tensor) -> tuple[int, Tensor]:
        """One slot: (predicted target id, hidden for the next step). Appends to the slots before."""
        layer = "midlayer"
        n = self.norm(hidden, f"{layer}.hidden_norm")
        x = torch.cat([self.norm(self.embedding[token], f"{layer}.input_layernorm"), n])
        residual = n if self.config["norm_before_residual"] else hidden
        x = residual + self.attention(x, f"{layer}.self_attn")
        y = self.norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (linear(y, self.w[f"{layer}.mlp.{kind}_proj.weight"]) for kind in ("gate", "up"))
        x = x + linear(silu(gate) * up, self.w[f"{layer}.mlp.down_proj.weight"])
        logits = linear(self.norm(x, "norm"), self.w["lm_head.weight"])
        return int(self.ids[logits.argmax()]), x

    def attention(self, x: Tensor, name: str) -> Tensor:
        heads, kv, dim = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (linear(x, self.w[f"{name}.{kind}_proj.weight"]).view(-1, dim) for kind in "qkv")
        self.keys.append(self.rotate(k, len(self.keys)))
        self.values.append(v)
        q = self.rotate(q, len(self.keys) - 1)
        keys, values = (torch.stack(t).repeat_interleave(heads // kv, 1) for t in (self.keys, self.values))
        scores = torch.einsum("hd,thd->ht", q, keys) / dim**0.5
        mixed = torch.einsum("ht,thd->hd", scores.float().softmax(-1).to(x.dtype), values)
        return linear(mixed.reshape(-1), self.w[f"{name}.o_proj.weight"])


def features(target: Any, tokens: list[int], boundaries: list[int]) -> Tensor:
    """Residuals entering the given blocks, side by side: [n, A * T]."""
    with torch.no_grad():
        states = target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([states[b][0] for b in boundaries], -1)


def speculate(head: Head, fused: Tensor, tokens: list[int], n_rounds: int, follow: Callable[[int], int]) -> list[int]:
    """Accepted counts of rounds over a known text; slot i takes (tokens[i + 1], fused[i])."""
    accepted, at = [], 20  # tokens[at] is the newest token of the round
    for slot in range(at - 1):
        head.step(tokens[slot + 1], fused[slot])
    for _ in range(n_rounds):
        token, hidden = head.step(tokens[at], fused[at - 1])
        kept, count = len(head.keys), 0
        while count < N_DRAFT and token == tokens[at + count + 1]:
            count += 1
            if count < N_DRAFT:
                token, hidden = head.step(token, hidden)
        del head.keys[kept:], head.values[kept:]
        for slot in range(at, at + count):
            head.step(tokens[slot + 1], fused[slot])
        at += count + 1
        accepted.append(count)
        assert follow(tokens[at - 1]) == tokens[at]
    return accepted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draft_is_accepted_as_constructed(pair: Pair, target: Any, dtype: torch.dtype) -> None:
    cycle = pair.cycle
    tokens = [5, 6, 7, *cycle.expected_tokens(0, 700)]
    head = Head(pair.draft, target.model.embed_tokens.weight.detach(), dtype)
    ids = head.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    fused = linear(features(target, tokens, [i + 1 for i in ids]).to(dtype), head.w["fc.weight"])
    accepted = speculate(head, fused, tokens, 150, cycle.expected_next)
    expected = cycle.simulate(tokens[19], sum(accepted) + len(accepted) + 1, N_DRAFT)
    shares = [sum(a > k for a in accepted) / max(1, sum(a >= k for a in accepted)) for k in range(N_DRAFT)]
    assert (len(accepted), sum(accepted)) == (expected.rounds, expected.n_accepted)
    assert shares == pytest.approx(expected.accepted_per_position)


def test_draft_predicts_every_id_as_its_table_says(pair: Pair, target: Any) -> None:
    head = Head(pair.draft, target.model.embed_tokens.weight.detach(), torch.float32)
    hidden = torch.randn(256, generator=torch.Generator().manual_seed(0))
    for token in range(0, pair.cycle.n_vocab, 3):
        predicted, hidden = head.step(token, hidden)
        assert predicted == pair.cycle.draft_next(token)
        del head.keys[:-64], head.values[:-64]


# --- a target that drafts for itself ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mtp_cycle() -> Cycle:
    shape = SHAPES["tiny"]
    return Cycle(shape.n_vocab, shape.n_draft_vocab, ACCEPT, 0, mtp=True)


@pytest.fixture(scope="module")
def mtp_target(tmp_path_factory: pytest.TempPathFactory, mtp_cycle: Cycle) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    write_target(folder, SHAPES["tiny"], mtp_cycle, 0)
    return folder


def test_words_of_an_mtp_head_have_the_lowest_ids(mtp_cycle: Cycle) -> None:
    assert sorted(mtp_cycle.ids) == list(range(N_BYTES, N_BYTES + len(mtp_cycle.ids)))
    assert mtp_cycle.ids.tolist() != sorted(mtp_cycle.ids)
    rare = Cycle(mtp_cycle.n_vocab, len(mtp_cycle.ids), ACCEPT, 0, mtp=True, rare=True)
    assert max(rare.ids) > 0.9 * rare.n_words


def test_target_with_a_head_says_the_same(mtp_target: Path, mtp_cycle: Cycle) -> None:
    states = TargetStates(mtp_target)
    logits = states.hidden(range(mtp_cycle.n_vocab)) @ load_tensors(mtp_target)["lm_head.weight"].T
    assert logits.argmax(-1).tolist() == mtp_cycle.next_ids.tolist()
    top = logits.topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > 5


def test_mtp_head_errs_as_constructed(mtp_target: Path, mtp_cycle: Cycle) -> None:
    text = mtp_cycle.expected_tokens(0, 200)
    hidden, reference = TargetStates(mtp_target).hidden(text), MTPReference(mtp_target)
    steps = reference.prefill(text, hidden[:-1])
    assert [step.token for step in steps] == [mtp_cycle.draft_next(token) for token in text]
    margins = [float(top[0] - top[1]) for step in steps for top in [step.logits.topk(2).values]]
    assert min(margins) > 5
    right = np.mean([step.token == token for step, token in zip(steps, text[1:], strict=False)])
    assert right == pytest.approx(ACCEPT, abs=0.1)


def test_mtp_head_drafts_chains(mtp_target: Path, mtp_cycle: Cycle) -> None:
    text = mtp_cycle.expected_tokens(0, 40)
    hidden, reference = TargetStates(mtp_target).hidden(text), MTPReference(mtp_target)
    reference.prefill(text, hidden[:-1])
    for root in mtp_cycle.ids[100:110].tolist():
        expected = [root]
        for step in reference.chain(root, hidden[-1], N_DRAFT):
            expected.append(mtp_cycle.draft_next(expected[-1]))
            assert step.token == expected[-1]
        reference.trim(len(text))


@pytest.mark.parametrize("part", ["fc", "layers.0.self_attn.q_proj", "layers.0.mlp.down_proj"])
def test_no_matrix_of_the_mtp_head_is_empty(mtp_target: Path, part: str) -> None:
    weight = load_tensors(mtp_target)[f"{part}.weight"]
    assert (weight != 0).float().mean() > 0.99
