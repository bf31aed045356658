"""Quantization through the library: types, importance matrices, refusals, and nothing left behind."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.convert.writer import gguf_output
from llama_eagle.errors import EnvironmentFailure, InputError, NativeError, UsageError
from llama_eagle.gguf.header import read_header
from llama_eagle.native import log
from llama_eagle.quantize.imatrix import read_imatrix
from llama_eagle.quantize.quantize import QuantizeOptions, _Parameters, check_type, file_types, quantize
from llama_eagle.quantize.reach import unreached

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_target("qwen35", tmp_path_factory.mktemp("q"), hidden_size=256, intermediate_size=512)
    convert_target(folder, folder / "bf16.gguf", TargetOptions(outtype="bf16"))
    return folder / "bf16.gguf"


def types(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def means(model: Path, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Random column weights for every matrix."""
    random = np.random.default_rng(3)
    matrices = [t for t in gguf.GGUFReader(model).tensors if len(t.shape) == 2]
    return {t.name: (random.random(int(t.shape[0])) * scale).astype(np.float32) for t in matrices}


def write_gguf_imatrix(path: Path, entries: dict[str, np.ndarray], count: int = 8) -> Path:
    with gguf_output(path, arch="imatrix") as out:
        out.key("general.type", "imatrix")
        out.key("imatrix.chunk_count", 2)
        for name, values in entries.items():
            out.tensor(f"{name}.in_sum2", (1, values.size), lambda values=values: values * count, "f32")
            out.tensor(f"{name}.counts", (1, 1), lambda: np.array([count], np.float32), "f32")
    return path


def write_legacy_imatrix(path: Path, entries: dict[str, np.ndarray], calls: int = 4) -> Path:
    parts = [struct.pack("<i", len(entries))]
    for name, values in entries.items():
        head = struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, values.size)
        parts.append(head + (values * calls).astype("<f4").tobytes())
    path.write_bytes(b"".join(parts))
    return path


def test_it_tells_how_far_it_is(model: Path, tmp_path: Path) -> None:
    told: list[float] = []
    out = tmp_path / "out.gguf"
    options = QuantizeOptions(threads=1, progress=told.append)
    planned = _Parameters([read_header(model)], "iq4_xs", options).n_bytes
    quantize(model, out, "iq4_xs", options)
    assert told == sorted(told) and told[-1] <= 1
    assert planned == pytest.approx(out.stat().st_size, rel=0.02), "the unit is a byte of the output"


def test_tensors_of_integers_stay_and_are_counted(tmp_path: Path) -> None:
    """The table of tokens of a draft with a small vocabulary."""
    draft = write_draft(tmp_path / "draft.gguf")
    quantize(draft, tmp_path / "out.gguf", "q8_0", QuantizeOptions(threads=1, progress=lambda _: None))
    assert types(draft)["d2t"] == types(tmp_path / "out.gguf")["d2t"] == "I64"


def test_room_for_both_files_is_looked_for_first(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the checkpoint's type, and the one that is made of it."""
    from llama_eagle import files

    n_bytes = model.stat().st_size  # bf16
    usage = shutil.disk_usage(tmp_path)
    for share, fits in ((1.2, False), (1.9, True)):
        free = usage._replace(free=int(share * n_bytes))
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _, free=free: free)
        if fits:
            convert_target(model.parent, tmp_path / "out.gguf", TargetOptions(outtype="q5_0"))
        else:
            with pytest.raises(EnvironmentFailure, match=r"only \d+\.\d+ MB are free"):
                convert_target(model.parent, tmp_path / "out.gguf", TargetOptions(outtype="q5_0"))
        assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"] * fits


def test_q4_k_m_runs(model: Path, tmp_path: Path) -> None:
    report = quantize(model, tmp_path / "q.gguf", "Q4_K_M")
    assert Counter(types(report.output).values())["Q4_K"] > 30
    assert report.n_bytes == report.output.stat().st_size < report.n_source_bytes == model.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["q.gguf"]
    tokens = list(range(40))
    with NativeTarget(model) as a, NativeTarget(report.output) as b:
        ours, exact = b.decode(tokens)[0], a.decode(tokens)[0]
    assert 0.7 < np.corrcoef(ours.ravel(), exact.ravel())[0, 1] < 1


def test_convert_does_both_steps_and_keeps_no_intermediate_file(model: Path, tmp_path: Path) -> None:
    report = convert_target(model.parent, tmp_path / "q.gguf", TargetOptions(outtype="q5_k_m", name="bf16"))
    assert [path.name for path in tmp_path.iterdir()] == ["q.gguf"]
    assert report.outtype == "q5_k_m" and report.outputs == [tmp_path / "q.gguf"]
    direct = quantize(model, tmp_path / "direct.gguf", "q5_k_m").output
    assert types(direct) == types(tmp_path / "q.gguf")


def test_chosen_tensor_types(model: Path, tmp_path: Path) -> None:
    options = QuantizeOptions(output_type="q8_0", tensor_types={"blk.1.ffn_down": "q5_0", "ffn_down": "q6_k"})
    found = types(quantize(model, tmp_path / "q.gguf", "q4_k_m", options).output)
    assert found["output.weight"] == "Q8_0"
    assert (found["blk.1.ffn_down.weight"], found["blk.2.ffn_down.weight"]) == ("Q5_0", "Q6_K")


def test_a_type_that_is_written_directly_goes_through_the_quantizer_when_asked(model: Path, tmp_path: Path) -> None:
    options = TargetOptions(outtype="q8_0", quantize=QuantizeOptions(output_type="f16"))
    convert_target(model.parent, tmp_path / "q.gguf", options)
    assert types(tmp_path / "q.gguf")["output.weight"] == "F16"


@pytest.mark.parametrize("writer", [write_gguf_imatrix, write_legacy_imatrix])
def test_importance_matrices_of_both_formats(writer: object, model: Path, tmp_path: Path) -> None:
    expected = means(model)
    path = writer(tmp_path / "im", expected)  # type: ignore[operator]
    found = read_imatrix(path).entries
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[name], expected[name]) for name in expected)
    plain = quantize(model, tmp_path / "plain.gguf", "q2_k").output
    weighted = quantize(model, tmp_path / "weighted.gguf", "q2_k", QuantizeOptions(imatrix=path)).output
    assert plain.read_bytes() != weighted.read_bytes()


def test_experts_that_were_never_used_weigh_all_columns_alike(tmp_path: Path) -> None:
    sums, counts = np.array([[4, 8], [0, 0]], np.float32), np.array([[4], [0]], np.float32)
    with gguf_output(tmp_path / "im.gguf", arch="imatrix") as out:
        out.key("imatrix.chunk_count", 1)
        out.tensor("x.in_sum2", (2, 2), lambda: sums, "f32")
        out.tensor("x.counts", (2, 1), lambda: counts, "f32")
    assert read_imatrix(tmp_path / "im.gguf").entries["x"].tolist() == [1, 2, 1, 1]


def test_importance_matrices_that_do_not_fit(model: Path, tmp_path: Path) -> None:
    cases = {
        "contains no tensor": {"other.weight": np.ones(4, np.float32)},
        "wrong model": {"blk.0.ffn_up.weight": np.ones(4, np.float32)},
        "not finite": {"blk.0.ffn_up.weight": np.full(256, np.nan, np.float32)},
    }
    for message, entries in cases.items():
        path = write_legacy_imatrix(tmp_path / "im.dat", entries)
        with pytest.raises(InputError, match=message):
            quantize(model, tmp_path / "q.gguf", "q4_k_m", QuantizeOptions(imatrix=path))
    for content in (b"", b"\x02\0\0\0", b"hello, this is no matrix", model.read_bytes()[:5000], model.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_imatrix(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_imatrix(tmp_path / "missing")
    assert not (tmp_path / "q.gguf").exists()


def test_refusals_leave_nothing_behind(model: Path, tmp_path: Path) -> None:
    quantized = quantize(model, tmp_path / "q.gguf", "q4_k_m").output
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(model.read_bytes()[:100_000])
    headless = tmp_path / "headless.gguf"
    with gguf_output(headless, arch="no-such-architecture") as out:
        out.tensor("a.weight", (4, 256), lambda: np.ones((4, 256), np.float32), "f32")
    before = sorted(tmp_path.iterdir())
    cases = [
        (quantized, "q5_k_m", InputError, "already quantized"),
        (model, "iq2_xxs", UsageError, "--imatrix"),
        (model, "q9_k", UsageError, "q4_k_m"),
        (garbage, "q4_k_m", InputError, "truncated"),
        (headless, "q4_k_m", InputError, "architecture"),
        (tmp_path / "missing.gguf", "q4_k_m", InputError, "no such file"),
    ]
    for source, ftype, error, message in cases:
        with pytest.raises(error, match=message):
            quantize(source, tmp_path / "out.gguf", ftype)
    with pytest.raises(UsageError, match="name another output"):
        quantize(model, model, "q4_k_m")
    with pytest.raises(EnvironmentFailure, match="does not exist"):
        quantize(model, tmp_path / "no" / "q.gguf", "q4_k_m")
    for options in (
        QuantizeOptions(output_type="q9"),
        QuantizeOptions(tensor_types={"(": "q8_0"}),
        QuantizeOptions(recipe="none"),
    ):
        with pytest.raises(UsageError):
            quantize(model, tmp_path / "out.gguf", "q4_k_m", options)
    assert sorted(tmp_path.iterdir()) == before


def test_a_source_that_vanishes_after_its_check(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's last line names only the file, and an earlier one the reason."""
    source = Path(shutil.copy(model, tmp_path / "source.gguf"))
    clear = log.clear  # right before the call
    monkeypatch.setattr(log, "clear", lambda: [clear(), source.unlink()])
    with pytest.raises(NativeError, match=r"failed to open GGUF file .*source\.gguf"):
        quantize(source, tmp_path / "q.gguf", "q4_k_m")
    assert not list(tmp_path.iterdir())


def test_requantizing_when_asked(model: Path, tmp_path: Path) -> None:
    first = quantize(model, tmp_path / "q8.gguf", "q8_0").output
    found = types(quantize(first, tmp_path / "q4.gguf", "q4_k_m", QuantizeOptions(requantize=True)).output)
    assert "Q4_K" in found.values()


def test_type_names() -> None:
    assert check_type("Q4_K") == check_type("q4_k_m") == 15
    assert {"f32", "bf16", "q8_0", "iq4_xs"} <= file_types().keys()


def test_the_recipe_for_speculation_is_about_attention_and_state(model: Path, tmp_path: Path) -> None:
    plain = types(quantize(model, tmp_path / "plain.gguf", "q4_k_m").output)
    found = types(quantize(model, tmp_path / "q.gguf", "q4_k_m", QuantizeOptions(recipe="speculation")).output)
    changed = {name for name in found if found[name] != plain[name]}
    assert {"blk.0.attn_gate.weight", "blk.0.ssm_out.weight", "blk.3.attn_q.weight"} <= changed
    assert changed == {n for n in found if ("attn_" in n or "ssm_" in n) and plain[n] not in ("F32", "Q6_K")}
    assert {found[name] for name in changed} == {"Q6_K", "Q8_0"}  # Q8_0 where rows are no multiple of 256


def test_a_matrix_that_does_not_reach_every_tensor(model: Path, tmp_path: Path) -> None:
    """As llama.cpp's never reaches an MTP head: these tensors have a type that needs none, and are named."""
    entries = {name: values for name, values in means(model).items() if not name.startswith("blk.3.")}
    imatrix = write_gguf_imatrix(tmp_path / "imatrix.gguf", entries)
    report = quantize(model, tmp_path / "out.gguf", "iq2_xxs", QuantizeOptions(imatrix=imatrix, threads=1))
    found = types(tmp_path / "out.gguf")
    assert "blk.3.ffn_up.weight" in report.without_matrix
    assert found["blk.3.ffn_up.weight"] == "Q3_K"
    assert found["blk.2.ffn_up.weight"] == "IQ2_XXS"
    assert all(name.startswith("blk.3.") for name in report.without_matrix)


def test_only_matrices_of_blocks_need_statistics(model: Path) -> None:
    found = set(unreached([read_header(model)], {}))
    assert {"blk.0.ffn_up.weight", "blk.0.ssm_out.weight", "blk.3.attn_q.weight"} <= found
    others = {
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.0.ssm_a",
        "blk.0.ssm_dt.bias",
        "blk.0.ssm_conv1d.weight",
    }
    assert others <= types(model).keys() and found.isdisjoint(others)


def test_a_type_that_was_chosen_by_name_needs_statistics_too(model: Path, tmp_path: Path) -> None:
    """Tensors without statistics keep a type that needs none."""
    entries = {name: values for name, values in means(model).items() if not name.startswith("blk.3.")}
    imatrix = write_gguf_imatrix(tmp_path / "imatrix.gguf", entries)
    patterns = {"^blk.3.ffn_up.weight$": "iq2_xxs", "blk.3.attn_k.weight": "iq2_xxs", "blk.2.ffn_up": "iq2_xxs"}
    options = QuantizeOptions(imatrix=imatrix, threads=1, tensor_types=patterns)
    report = quantize(model, tmp_path / "out.gguf", "q4_k_m", options)
    found = types(report.output)
    assert set(report.without_matrix) == {"blk.3.ffn_up.weight", "blk.3.attn_k.weight"}
    assert (found["blk.3.ffn_up.weight"], found["blk.3.attn_k.weight"]) == ("Q3_K", "Q3_K")
    assert found["blk.2.ffn_up.weight"] == "IQ2_XXS"
    assert found["blk.3.ffn_down.weight"] in ("Q4_K", "Q6_K")
    assert "blk.3.attn_k.weight" in report.warnings[0]


def test_an_output_matrix_needs_statistics_too(model: Path, tmp_path: Path) -> None:
    entries = {name: values for name, values in means(model).items() if name != "output.weight"}
    imatrix = write_gguf_imatrix(tmp_path / "imatrix.gguf", entries)
    for given in (None, imatrix):
        options = QuantizeOptions(output_type="iq2_xxs", imatrix=given, threads=1)
        with pytest.raises(InputError, match=r"no statistics for output\.weight"):
            quantize(model, tmp_path / "out.gguf", "q8_0", options)


def test_statistics_of_no_token_are_none(model: Path, tmp_path: Path) -> None:
    imatrix = write_gguf_imatrix(tmp_path / "imatrix.gguf", means(model), count=0)
    with pytest.raises(InputError, match="holds no importance matrix"):
        quantize(model, tmp_path / "out.gguf", "iq2_xxs", QuantizeOptions(imatrix=imatrix))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows do not divide into blocks of 256."""
    folder = make_target("qwen3", tmp_path_factory.mktemp("narrow"), hidden_size=192, intermediate_size=256)
    convert_target(folder, folder / "bf16.gguf", TargetOptions(outtype="bf16"))
    return folder / "bf16.gguf"


@pytest.mark.parametrize("kind", ["iq1_m", "IQ2_XS", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s"])
def test_types_that_need_a_matrix_need_it_for_every_model(kind: str, model: Path, narrow: Path, tmp_path: Path) -> None:
    """Help says so, and rows that do not divide into blocks are no way around it."""
    for source in (model, narrow):
        with pytest.raises(UsageError, match=f"type {kind} needs an importance matrix"):
            quantize(source, tmp_path / "out.gguf", kind, QuantizeOptions(threads=1))


@pytest.mark.parametrize("kind", ["iq2_xs", "q4_k_m", "q5_0", "q8_0"])
def test_the_report_has_the_types_of_the_file(kind: str, model: Path, narrow: Path, tmp_path: Path) -> None:
    for source in (model, narrow):
        options = QuantizeOptions(threads=1, imatrix=write_gguf_imatrix(tmp_path / "im.gguf", means(source)))
        report = quantize(source, tmp_path / "out.gguf", kind, options)
        assert report.types == Counter(types(report.output).values())
        sizes = Counter[str]()
        for tensor in gguf.GGUFReader(report.output).tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_bytes)
        assert [sizes[name] for name in report.types] == sorted(sizes.values(), reverse=True)
        is_larger = source == narrow and "q5_0" != kind != "q8_0"
        assert (report.oversize is not None) is is_larger
        assert (report.oversize in report.warnings) is is_larger
        if kind == "iq2_xs" and is_larger:
            assert "rows of 128, 192 values do not divide into blocks of 256" in str(report.oversize)
            assert f"{report.types['IQ4_NL']} tensors in IQ4_NL" in str(report.oversize)
