"""`llama-eagle convert` with a hub id: what can be refused early is refused before the weights are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.command import Outcome, llama_eagle
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.hub import serve_hub
from fixtures.lora import pair, write_peft
from fixtures.targets import make_target
from llama_eagle.gguf.header import read_header


@dataclass(frozen=True)
class Work:
    """A hub with a target, a draft, an adapter and a repository without a checkpoint; and the output folder."""

    folder: Path
    endpoint: str

    def convert(self, source: str, *options: object, out: str = "out.gguf") -> Outcome:
        named = [str(each).replace("OUT", str(self.folder)) for each in ("-o", self.folder / out, *options)]
        home = str(self.folder / "hf")
        return llama_eagle(
            "convert", source, *named, HF_ENDPOINT=self.endpoint, HF_HOME=home, HF_HUB_DISABLE_PROGRESS_BARS="1"
        )

    @property
    def has_weights(self) -> bool:
        return any(path.suffix in (".safetensors", ".bin") for path in (self.folder / "hf").rglob("*"))

    def assert_refused(self, outcome: Outcome, code: int, message: str) -> None:
        assert (outcome.code, message in outcome.stderr) == (code, True), outcome
        assert not self.has_weights
        assert not list(self.folder.glob("*.gguf"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hub")
    make_target("qwen3", folder / "me/target", 1, dtype="float32")
    make_draft(folder / "me/draft", CASES["specforge"])
    for name, file in (
        ("me/none", "tokenizer.json"),
        ("me/adapter", "adapter_config.json"),
        ("me/bert", "config.json"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text('{"architectures": ["NoSuchModel"]}')
        (folder / name / "model.safetensors").write_text("weights")
    write_peft(folder / "me/lora", pair("model.layers.0.self_attn.q_proj", 128, 64))
    with serve_hub(folder) as endpoint:
        yield endpoint


def test_an_adapter(work: Work) -> None:
    target = work.folder / "target.gguf"
    assert work.convert("me/target", "--outtype", "f32", out="target.gguf").code == 0
    for out, options in (("lora.gguf", ("--target", target)), ("merged.gguf", ("--merge", "--base", "me/target"))):
        done = work.convert("me/lora", *options, out=out)
        assert done.code == 0, done
    lora, merged = (read_header(work.folder / name).tensors for name in ("lora.gguf", "merged.gguf"))
    assert lora.keys() == {f"blk.0.attn_q.weight.lora_{part}" for part in "ab"}
    assert merged.keys() == read_header(target).tensors.keys()


@pytest.fixture
def work(hub: str, tmp_path: Path) -> Work:
    (tmp_path / "text").write_text("text")
    return Work(tmp_path, hub)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("-o", "OUT/none/x.gguf"), 4, "does not exist"), (("-o", "OUT"), 2, "is a folder"),
        (("--mmproj", "OUT/none/x.gguf"), 4, "does not exist"), (("--mmproj", "OUT/out.gguf"), 2, "the same file"),
        (("--split-max-size", "2GB"), 2, "2GB"), (("--no-mtp", "--mtp-only"), 2, "exclude each other"),
        (("--rope-base", 0), 2, "RoPE base"), (("--aux-layers", "x"), 2, "--aux-layers"),
        (("--calibration", "OUT/none"), 3, "cannot be read"), (("--target", "none.gguf"), 3, "none.gguf"),
        (("--target", "OUT/text"), 3, "not a GGUF"),
    ],
)  # fmt: skip
def test_options(work: Work, options: tuple[object, ...], code: int, message: str) -> None:
    work.assert_refused(work.convert("me/target", *options), code, message)


@pytest.mark.native
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--outtype", "q4km"), 2, "q4km"), (("--recipe", "nonsense"), 2, "nonsense"),
        (("--outtype", "q4_k_m", "--imatrix", "OUT/none"), 3, "cannot be read"),
        (("--outtype", "q4_k_m", "--imatrix", "OUT/text"), 3, "not an importance matrix"),
        (("--outtype", "iq2_xxs"), 2, "--imatrix"),
        (("--outtype", "q4_k_m", "--split-max-size", "2G"), 2, "--split-max-size"),
    ],
)  # fmt: skip
def test_options_of_the_quantizer(work: Work, options: tuple[object, ...], code: int, message: str) -> None:
    work.assert_refused(work.convert("me/target", *options), code, message)


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
        ("me/none", (), 3, "no checkpoint (config.json)"), ("me/adapter", (), 3, "LoRA adapter"),
        ("me/bert", (), 3, "NoSuchModel"), ("me/draft", (), 2, "--target"),
        ("me/draft", ("--target", "me/target", "--mtp-only"), 2, "--mtp-only does not apply to a draft"),
    ],
)  # fmt: skip
def test_repositories(work: Work, source: str, options: tuple[object, ...], code: int, message: str) -> None:
    work.assert_refused(work.convert(source, *options), code, message)


def test_both_are_converted(work: Work) -> None:
    assert work.convert("me/target").code == 0
    assert work.convert("me/draft", "--target", "me/target", out="draft.gguf").code == 0
    assert work.has_weights
