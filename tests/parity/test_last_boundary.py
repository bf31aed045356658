"""The state after a target's last block, as a draft may read it: gpt-oss, whose published drafts do."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures import tiny_gguf
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.llama_pairs import complete, load
from fixtures.native import NativeTarget
from fixtures.tiny_gguf import FFN, HEAD_SIZE, HIDDEN, N_VOCAB, Variant
from llama_eagle.convert.drafts import DraftOptions, convert_draft

pytestmark = pytest.mark.native

N_LAYER, N_HEAD, N_EXPERT = 4, 2, 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random gpt-oss."""
    path = tmp_path_factory.mktemp("gpt-oss") / "target.gguf"
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    tiny_gguf.add_tokenizer(writer, Variant())
    tiny_gguf.add_common(writer, Variant(), N_LAYER)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(FFN)
    writer.add_sliding_window(8)
    for name, shape in _shapes().items():
        noise = rng.standard_normal(shape) / np.sqrt(shape[-1])
        writer.add_tensor(name, (noise + name.endswith("norm.weight")).astype(np.float32))
    return tiny_gguf.finish(writer, path)


def _shapes() -> dict[str, tuple[int, ...]]:
    """NumPy order."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (N_VOCAB, HIDDEN),
    }
    for layer in range(N_LAYER):
        linear = {
            "attn_q": (N_HEAD * HEAD_SIZE, HIDDEN),
            "attn_k": (HEAD_SIZE, HIDDEN),
            "attn_v": (HEAD_SIZE, HIDDEN),
            "attn_output": (HIDDEN, N_HEAD * HEAD_SIZE),
            "ffn_gate_inp": (N_EXPERT, HIDDEN),
            "ffn_gate_exps": (N_EXPERT, FFN, HIDDEN),
            "ffn_up_exps": (N_EXPERT, FFN, HIDDEN),
            "ffn_down_exps": (N_EXPERT, HIDDEN, FFN),
        }
        block = {f"{name}.weight": shape for name, shape in linear.items()}
        block |= {f"{name}.bias": shape[:-1] for name, shape in linear.items()}
        block |= {"attn_sinks.weight": (N_HEAD,), "attn_norm.weight": (HIDDEN,)}
        block["post_attention_norm.weight"] = (HIDDEN,)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def _tensor(path: Path, name: str) -> np.ndarray:
    return next(t.data for t in gguf.GGUFReader(path).tensors if t.name == name)


def test_it_is_the_state_before_the_final_norm(target: Path) -> None:
    """Norm and head, in NumPy, make the logits of it."""
    tokens = np.random.default_rng(2).integers(0, N_VOCAB, 24).tolist()
    with NativeTarget(target, n_ubatch=16, layers=[N_LAYER]) as native:
        logits, features = native.decode(tokens)
    x = features[N_LAYER]
    normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * _tensor(target, "output_norm.weight")
    expected = normed @ _tensor(target, "output.weight").T
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


def test_every_row_of_a_prompt_is_there(target: Path) -> None:
    """A prompt asks only for its last token's logits; upstream's last block may skip the other rows."""
    tokens = np.random.default_rng(3).integers(0, N_VOCAB, 24).tolist()
    with NativeTarget(target, n_ubatch=16, layers=[N_LAYER]) as one, NativeTarget(target, layers=[N_LAYER]) as all_rows:
        found, expected = one.features(tokens)[N_LAYER], all_rows.decode(tokens)[1][N_LAYER]
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_texts_with_a_published_draft_are_those_of_plain_decoding(target: Path, tmp_path: Path) -> None:
    """A draft in SpecForge's format, converted for the GGUF, whose last feature is that state."""
    spec = DraftSpec(n_vocab=N_VOCAB, ids_nested=(1, 2, N_LAYER))
    draft = tmp_path / "draft.gguf"
    convert_draft(make_draft(tmp_path / "checkpoint", spec), target, draft, DraftOptions(outtype="f16"))
    files = {"target": target, "draft": draft}
    with load(files, draft=None) as plain, load(files, n_draft=3, lookup=False) as llm:
        for options in ({"temperature": 0}, {"seed": 3, "temperature": 1.5}):
            assert complete(llm, "abc", **options)["text"] == complete(plain, "abc", **options)["text"]
        assert llm.speculative_stats.n_drafted > 0
