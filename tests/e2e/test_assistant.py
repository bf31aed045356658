"""Drafts for Gemma 4, mainly its assistant: logits of transformers, equal texts, saved states, slots, refusals."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import GEMMA, DraftSpec, make_draft
from fixtures.gemma4 import N_VOCAB, WIDTH, WINDOW, Gemma4Pair, make_gemma4_pair
from fixtures.llama_pairs import SOFT, complete, load
from fixtures.native import NativeTarget, draft_with_probs
from fixtures.serving import serve
from fixtures.tiny_gguf import write_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import EagleError, IncompatibleModels, InputError
from llama_eagle.gguf import pairing
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.pairing import check_models, require_models
from llama_eagle.gguf.reading import bytes_per_token
from llama_eagle.gguf.sidecars import find_sidecars
from llama_eagle.native.calls import FLOATS, check
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession

pytestmark = pytest.mark.native

N_STEPS = 5
TOLERANCE = 3e-4  # of a step's largest value; ggml's GELU is a table in 16 bits
FLAT = {"temperature": 6.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # for logits that softcapping leaves apart


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Gemma4Pair:
    return make_gemma4_pair(tmp_path_factory.mktemp("gemma4"))


@pytest.fixture
def session(pair: Gemma4Pair) -> Iterator[EagleSession]:
    with (
        NativeTarget(pair.gguf, n_ctx=256, n_ubatch=64) as context,
        Model(pair.draft) as draft,
        EagleSession(context, draft, SessionOptions(N_STEPS)) as session,
    ):
        yield session


def expected(pair: Gemma4Pair, tokens: list[int], n_steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits and the next input state of each step after `tokens`, by transformers."""
    *text, last = tokens
    embed = pair.target.get_input_embeddings()
    with torch.no_grad():
        out = pair.target(torch.tensor([text]), output_hidden_states=True, return_shared_kv_states=True)
        shared = dict(out.shared_kv_states)
        # llama.cpp's window ends at the drafted position, and so has two rows less than the one of transformers' class
        shared["sliding_attention"] = tuple(rows[:, :, 1 - WINDOW :] for rows in shared["sliding_attention"])
        state, token = out.hidden_states[-1][:, -1:], torch.tensor([[last]])
        for _ in range(n_steps):
            step = pair.assistant(
                inputs_embeds=torch.cat([embed(token), state], -1),
                attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                position_ids=torch.tensor([[len(text)]]),
                shared_kv_states=shared,
            )
            state, token = step.last_hidden_state, step.logits.argmax(-1)
            yield step.logits[0, 0], state[0, 0]


@pytest.mark.parametrize("n_tokens", [41, 200])  # within the window, and three times its size
def test_logits_are_those_of_transformers(pair: Gemma4Pair, session: EagleSession, n_tokens: int) -> None:
    tokens = random.Random(2).choices(range(300, N_VOCAB), k=n_tokens)
    session.eval(tokens[:-1])
    ids, probs = draft_with_probs(session, tokens[-1], N_STEPS)
    for i, (logits, state) in enumerate(expected(pair, tokens, N_STEPS)):
        found, hidden = session.draft_logits(i), np.empty(WIDTH, np.float32)
        status = session._lib.eagle_draft_step(session._handle, i, None, hidden.ctypes.data_as(FLOATS))
        check(status, "eagle_draft_step")
        for ours, theirs in ((found, logits.numpy()), (hidden, state.numpy())):
            assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert ids[i] == int(logits.argmax())
        assert abs(probs[i] - float(logits.softmax(-1).max())) < 1e-3


def test_the_last_state_follows_every_round(pair: Gemma4Pair, session: EagleSession) -> None:
    """After every number of kept rows, a cut and a restored state, drafts are those of transformers."""
    tokens = random.Random(4).choices(range(300, N_VOCAB), k=30)
    session.eval(tokens)
    for n_kept in (1, N_STEPS + 1, 3):
        id_last = tokens[0]
        drafted = session.draft(id_last, N_STEPS)
        assert drafted == [int(logits.argmax()) for logits, _ in expected(pair, [*tokens, id_last], N_STEPS)]
        session.verify([id_last, *drafted])
        session.commit(n_kept)
        tokens += [id_last, *drafted][:n_kept]
    data, n_past = session.save_state(), session.n_past
    drafted = session.draft(7, N_STEPS)
    session.load_state(data, n_past)
    assert session.draft(7, N_STEPS) == drafted != []
    for broken in (data[:20], data[:-4], bytes(8) + data[8:]):
        with pytest.raises(IncompatibleModels):
            session.load_state(broken, n_past)
    session.load_state(None, n_past)
    assert session.draft(7, N_STEPS) == []  # until the next row, whose state it reads
    session.eval([8])
    assert len(session.draft(9, N_STEPS)) == N_STEPS


def test_texts_are_those_of_plain_decoding(pair: Gemma4Pair) -> None:
    files = {"target": pair.gguf, "draft": pair.draft}
    prompt = "abc defghij " * 12  # longer than the window
    with load(files, draft=None) as plain, load(files, n_draft=4, draft_vocab=128, lookup=False) as llm:
        n_drafted = n_accepted = 0
        for options in ({"temperature": 0}, {"seed": 3, **FLAT}, {"seed": 4, **FLAT}):
            assert complete(llm, prompt, **options)["text"] == complete(plain, prompt, **options)["text"]
            n_drafted += llm.speculative_stats.n_drafted
            n_accepted += llm.speculative_stats.n_accepted
        assert "assistant" in str(llm.speculative_stats.as_dict())
        assert 0 < n_accepted < n_drafted


BOUNDARIES = (1, 3, 5)
EAGLE3 = {
    "speculators": DraftSpec(
        "speculators", n_vocab=N_VOCAB, embedding=True, ids_top=BOUNDARIES, norm_before_residual=True
    ),
    "DeepSpec": replace(
        GEMMA["keys"], n_vocab=N_VOCAB, n_draft=N_VOCAB, n_aux=3,
        config=GEMMA["keys"].config | {"target_layer_ids": [layer - 1 for layer in BOUNDARIES]},
    ),
}  # fmt: skip


def test_features_are_the_states_of_transformers(pair: Gemma4Pair) -> None:
    tokens = random.Random(3).choices(range(300, N_VOCAB), k=40)
    with torch.no_grad():
        states = pair.target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    with NativeTarget(pair.gguf, layers=BOUNDARIES) as target:
        for layer, found in target.features(tokens).items():
            theirs = states[layer][0].numpy()
            assert np.abs(found - theirs).max() < 1e-3 * np.abs(theirs).max()  # ggml's GELU is a table in 16 bits


@pytest.mark.parametrize("maker", EAGLE3)
def test_texts_with_an_eagle3_draft_are_those_of_plain_decoding(maker: str, pair: Gemma4Pair, tmp_path: Path) -> None:
    files = {"target": pair.gguf, "draft": tmp_path / "eagle3.gguf"}
    convert_draft(
        make_draft(tmp_path / "checkpoint", EAGLE3[maker]), pair.gguf, files["draft"], DraftOptions(outtype="f16")
    )
    with load(files, draft=None) as plain, load(files, n_draft=3, lookup=False) as llm:
        for options in ({"temperature": 0}, {"seed": 3, **FLAT}):
            assert complete(llm, "abc", **options)["text"] == complete(plain, "abc", **options)["text"]
        assert llm.speculative_stats.n_drafted > 0


def test_clients_of_a_server_read_the_text_of_plain_decoding(pair: Gemma4Pair) -> None:
    rng = random.Random(2)
    asked = [
        {"prompt": rng.choices(range(300, N_VOCAB), k=rng.randint(1, 90)), "n": 20}
        | {"seed": i, **(FLAT if i % 2 else {"temperature": 0})}
        for i in range(8)
    ]
    found = []
    for drafting in ("-d", "none"), ("-d", pair.draft, "--n-draft", 3, "--no-lookup"):
        with serve("-m", pair.gguf, "-c", 256, "-t", 1, *drafting) as server, ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda each: server.complete(**each, ignore_eos=True), asked))
        found.append([answer["tokens"] for answer in answers])
    assert found[0] == found[1]
    assert sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers) > 10


def test_an_assistant_is_found_and_refused_by_name(
    pair: Gemma4Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing, "HEAD_ROWS", (N_VOCAB,))  # as many as all
    (found,) = find_sidecars(read_model(pair.gguf)[1])
    assert found.files and found.files[0].path == pair.draft
    share = bytes_per_token(found.files) / bytes_per_token(read_model(pair.gguf)[1])
    about = check_models(pair.gguf, pair.draft).draft
    assert about is not None and about["step_share"] == {"all": pytest.approx(share, abs=1e-4)}
    with pytest.raises(IncompatibleModels, match="an assistant of Gemma 4, the target is a qwen35 model"):
        require_models(write_target(tmp_path / "other.gguf", SOFT), pair.draft)
    with pytest.raises(InputError, match="an assistant of Gemma 4, not a target"):
        require_models(pair.draft)


def edited(pair: Gemma4Pair, folder: Path, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """Copy the checkpoint. edit: changes its configuration and the text_config."""
    shutil.copytree(pair.checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    edit(config, config["text_config"])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_old_keys(config: dict[str, Any], text: dict[str, Any]) -> None:
    """Write the keys of earlier transformers."""
    del text["per_layer_config"], text["rope_parameters"]
    text |= {"global_head_dim": 64, "attention_k_eq_v": True, "num_global_key_value_heads": 2}


def contents(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    heads = "gemma4-assistant.attention.head_count_kv"
    keys[heads] = keys[heads] if isinstance(keys[heads], list) else [keys[heads]] * 3
    return keys, {t.name: bytes(f"{t.shape} {t.tensor_type}", "utf-8") + t.data.tobytes() for t in reader.tensors}


@pytest.mark.parametrize("edit", [lambda config, text: None, with_old_keys], ids=["as saved", "earlier keys"])
def test_a_checkpoint_is_converted(edit: Any, pair: Gemma4Pair, tmp_path: Path) -> None:
    """The keys and tensors of the file that the fixture writes from the modules."""
    folder = edited(pair, tmp_path / "assistant", edit)
    convert_draft(folder, pair.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    keys, tensors = contents(tmp_path / "draft.gguf")
    expected, values = contents(pair.draft)
    own = {"name", "type", "file_type", "size_label", "quantization_version"}
    assert keys == expected | {f"general.{name}": keys[f"general.{name}"] for name in own}
    assert tensors == values
    require_models(pair.gguf, tmp_path / "draft.gguf")
    report = convert_draft(folder, pair.gguf, tmp_path / "none.gguf", DraftOptions(outtype="q8_0", dry_run=True))
    assert {row.outtype for row in report.tensors} == {"q8_0", "f32"} and not (tmp_path / "none.gguf").exists()


UNLIKE: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "hidden size of 96 and 465 tokens": lambda config, text: config.update(backbone_hidden_size=96),
    "hidden_activation is 'silu'": lambda config, text: text.update(hidden_activation="silu"),
    "enable_moe_block is True": lambda config, text: text.update(enable_moe_block=True),
    "layer_types must have one of": lambda config, text: text.update(layer_types=["full_attention"]),
    "heads of different sizes": lambda config, text: text["per_layer_config"].update({"0": {"head_dim": 16}}),
    "rope_type is 'yarn'": lambda config, text: text["rope_parameters"]["full_attention"].update(rope_type="yarn"),
    "q_proj.weight has shape": lambda config, text: text["per_layer_config"].clear(),
}


@pytest.mark.parametrize("reason", UNLIKE)
def test_other_assistants_are_refused_by_name(reason: str, pair: Gemma4Pair, tmp_path: Path) -> None:
    folder = edited(pair, tmp_path / "assistant", UNLIKE[reason])
    with pytest.raises(EagleError, match=reason):
        convert_draft(folder, pair.gguf, tmp_path / "draft.gguf")
    assert list(tmp_path.iterdir()) == [folder]
