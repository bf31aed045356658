"""Random drafts survive conversion value by value; mutated ones end in one clear error and leave nothing behind."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.eagle3_checkpoints import DraftSpec, draft_tensors, make_draft, make_target_gguf
from fuzz.folder import Files
from fuzz.folder import mutated as changed_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_eagle.cli import main
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import ConfigError, ConversionError, InputError

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@st.composite
def specs(draw: st.DrawFn) -> tuple[DraftSpec, int]:
    """Any draft and its target's layer count."""
    n_head_kv = draw(st.integers(1, 3))
    n_vocab = draw(st.integers(20, 90))
    target_hidden = draw(st.sampled_from([8, 24, 32]))
    hidden = draw(st.sampled_from([target_hidden, target_hidden, 16]))
    n_layer = draw(st.integers(7, 90))
    n_aux = draw(st.sampled_from([1, 2, 3, 3, 3, 5]))
    ids = sorted(draw(st.sets(st.integers(0, n_layer - 1), min_size=n_aux, max_size=n_aux)))
    flags = {
        name: draw(st.booleans())
        for name in ("embedding", "t2d", "norm_before_residual", "norm_output", "qk_norm", "bias", "fc_bias")
    }
    flags["embedding"] = flags["embedding"] or hidden != target_hidden
    norm = draw(st.sampled_from([{}, {"norm_before_fc": True}, {"fc_norm": True}]))
    spec = DraftSpec(
        producer=draw(st.sampled_from(["SpecForge", "ModelOpt", "speculators", "SafeAILab"])),
        hidden=hidden,
        target_hidden=target_hidden,
        n_head=n_head_kv * draw(st.integers(1, 3)),
        n_head_kv=n_head_kv,
        head_dim=2 * draw(st.integers(1, 6)),
        ffn=draw(st.integers(1, 40)),
        n_vocab=n_vocab,
        n_draft=draw(st.integers(2, n_vocab)),
        n_aux=n_aux,
        n_layer=draw(st.sampled_from([1, 1, 2])),
        ids_top=tuple(ids),
        sorted_d2t=draw(st.booleans()),
        dtype=draw(st.sampled_from(["float32", "float16", "bfloat16"])),
        files=draw(st.sampled_from(["safetensors", "sharded", "bin"])),
        **flags,
        **norm,
    )
    return spec, n_layer


def interleaved(tensor: np.ndarray, head_dim: int) -> np.ndarray:
    """Row 2j of a head is row j of the first half, row 2j + 1 row j of the second."""
    heads = tensor.reshape(-1, head_dim, *tensor.shape[1:])
    out = np.empty_like(heads)
    out[:, 0::2], out[:, 1::2] = heads[:, : head_dim // 2], heads[:, head_dim // 2 :]
    return out.reshape(tensor.shape)


NAMES = {
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "input_norm.weight": "enc.output_norm.weight",
}
PARTS = {
    "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def expected_tensors(spec: DraftSpec) -> dict[str, np.ndarray]:
    """GGUF name -> values, by the format's description."""
    found = {}
    for name, tensor in draft_tensors(spec).items():
        if name == "d2t":
            found["d2t"] = tensor.numpy() + np.arange(len(tensor))
        elif name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            values = tensor.float().numpy()
            rotated = any(mark in part for mark in ("q_proj", "k_proj", "q_norm", "k_norm"))
            found[f"blk.{layer}.{PARTS[part]}.{kind}"] = interleaved(values, spec.heads) if rotated else values
        elif name != "t2d":
            found[NAMES.get(name, name)] = tensor.float().numpy()
    return found


@given(specs())
@settings(max_examples=30, **QUIET)
def test_values_survive(case: tuple[DraftSpec, int]) -> None:
    spec, n_layer = case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = make_target_gguf(folder / "t.gguf", hidden=spec.target_hidden, n_vocab=spec.n_vocab, n_layer=n_layer)
        source = make_draft(folder / "draft", spec)
        convert_draft(source, target, folder / "out.gguf", DraftOptions(outtype="f32", aux_layers=spec.ids_top))
        reader = gguf.GGUFReader(folder / "out.gguf")
        found = {t.name: np.array(t.data) for t in reader.tensors if t.name != "extended"}
        layers = reader.fields["eagle3.target_layers"].contents()
    expected = expected_tensors(spec)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert layers == list(spec.ids_top or ())


# --- mutations ---------------------------------------------------------------------------------------------------

SMALL = DraftSpec(hidden=16, target_hidden=16, n_head=2, n_head_kv=1, ffn=8, n_vocab=40, n_draft=12)
BASES = {
    "specforge": replace(SMALL, ids_nested=(1, 3, 4), norm_output=True, fc_norm=True),
    "speculators": replace(
        SMALL, producer="speculators", ids_top=(2, 4, 5), norm_before_residual=True, embedding=True, qk_norm=True
    ),
    "modelopt": replace(
        SMALL, producer="ModelOpt", bias=True, n_draft=40, rope={"rope_type": "default", "rope_theta": 1e6}
    ),
    "bin": replace(SMALL, producer="SafeAILab", files="bin"),
}


@functools.cache
def bases() -> dict[str, Files]:
    """The files of each valid draft and of its target, in memory."""
    folder = Path(tempfile.mkdtemp())
    target = make_target_gguf(folder / "target.gguf", hidden=16, n_vocab=40).read_bytes()
    found = {}
    for name, spec in BASES.items():
        draft = make_draft(folder / name, spec)
        found[name] = {path.name: path.read_bytes() for path in draft.iterdir()} | {"target.gguf": target}
    shutil.rmtree(folder)
    return found


@contextmanager
def mutated(base: str, seed: int) -> Iterator[Path]:
    """A folder with draft/, target.gguf and an empty out/."""
    rng = random.Random(seed)
    files = changed_files(bases()[base], rng)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "draft").mkdir()
        (work / "out").mkdir()
        for name, data in files.items():
            ((work if name == "target.gguf" else work / "draft") / name).write_bytes(data)
        yield work


def convert_mutated(base: str, seed: int) -> str | None:
    """The message of the error, None if the conversion went through; fails the test for anything else."""
    with mutated(base, seed) as work:
        try:
            convert_draft(work / "draft", work / "target.gguf", work / "out" / "out.gguf", DraftOptions())
        except (ConversionError, ConfigError, InputError) as error:
            assert error.exit_code == 3
            assert str(error)
            assert "\n" not in str(error)
            assert not list((work / "out").iterdir())
            return str(error)
        gguf.GGUFReader(work / "out" / "out.gguf")
        assert [path.name for path in (work / "out").iterdir()] == ["out.gguf"]
        return None


@given(base=st.sampled_from(sorted(BASES)), seed=st.integers(0, 2**48))
@settings(max_examples=150, **QUIET)
def test_mutated_drafts(base: str, seed: int) -> None:
    convert_mutated(base, seed)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_drafts_on_the_command_line(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One error line on stderr, one object on stdout, exit code 3; or success."""
    with mutated(sorted(BASES)[seed % len(BASES)], seed) as work:
        command = ["convert", work / "draft", "--target", work / "target.gguf", "-o", work / "out" / "o.gguf", "--json"]
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in command])
        written = list((work / "out").iterdir())
    code = end.value.code or 0
    out, err = capsys.readouterr()
    assert code in (0, 2, 3)
    assert isinstance(json.loads(out), dict)
    assert sum(line.startswith("error: ") for line in err.splitlines()) == (code != 0)
    assert all(line.startswith(("error: ", "warning: ")) for line in err.splitlines())
    assert bool(written) == (code == 0)


@pytest.mark.slow
@given(base=st.sampled_from(sorted(BASES)), seed=st.integers(0, 2**48))
@settings(max_examples=12_000, **QUIET)
def test_many_mutated_drafts(base: str, seed: int) -> None:
    convert_mutated(base, seed)


def test_unmutated_bases_convert(tmp_path: Path) -> None:
    for name, files in bases().items():
        folder = tmp_path / name
        folder.mkdir()
        for file, data in files.items():
            (folder / file).write_bytes(data)
        convert_draft(folder, folder / "target.gguf", tmp_path / f"{name}.gguf")
