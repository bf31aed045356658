"""Synthetic pairs as GGUF files. They are made once and cached, for benchmarks and tests."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_eagle.convert
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.synthetic.blocks import BlockCycle, write_block_draft, write_block_target
from llama_eagle.synthetic.constructed import write_draft, write_target
from llama_eagle.synthetic.cycle import Cycle
from llama_eagle.synthetic.shapes import SHAPES, Shape

Log = Callable[[str], None]

MAKERS = ("blocks", "constructed", "cycle", "ggufs", "shapes", "tokenizer", "weights")  # modules that define the files
MTP_WORDS = 6800  # words in the text of an MTP head: the fixed rows of a head trimmed to 8192 rows include all of them


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """GGUFs of a constructed pair and its known text."""

    target: Path
    draft: Path
    cycle: Cycle


@dataclasses.dataclass(frozen=True)
class MTPFile:
    """GGUF of a constructed target with an MTP head, and the known text of both."""

    target: Path
    cycle: Cycle


@dataclasses.dataclass(frozen=True)
class PairFolder:
    """Folder for the files of one shape. Files made by other versions of this code are deleted.

    `keep`: keep the Hugging Face checkpoints next to the GGUFs. `fresh`: make new files also if the converter has
    changed, which matters for their content, but hardly for their speed.
    """

    path: Path
    shape: str
    seed: int = 0
    keep: bool = False
    fresh: bool = True
    log: Log = lambda text: None

    def files(self, accept: float, outtype: str, draft_type: str | None = None) -> PairFiles:
        """Return the pair in the given types (`q8_0`, `q4_k_m`, ...), made now if necessary."""
        shape = SHAPES[self.shape]
        cycle = Cycle(shape.n_vocab, shape.n_draft_vocab, accept, self.seed)
        draft_type = draft_type or outtype
        target = self.path / f"target-{outtype}.gguf"
        draft = self.path / f"draft-{accept:g}-{draft_type}.gguf"
        with self._open():
            self._make_target("target", shape, cycle, target, outtype)
            if not draft.is_file():
                name = f"draft-{accept:g}"
                convert = lambda hf, out, kind: _convert_draft(hf, target, out, kind)  # noqa: E731
                self._make(lambda hf: write_draft(hf, shape, cycle, self.seed), name, convert, draft, draft_type)
        return PairFiles(target, draft, cycle)

    def mtp(self, accept: float, outtype: str, *, rare: int = 0) -> MTPFile:
        """Return a target with an MTP head of this acceptance rate.

        `rare`: length of its repeated text, in words of any ids.
        """
        shape = SHAPES[self.shape]
        n_words = rare or min(shape.n_draft_vocab, MTP_WORDS)
        cycle = Cycle(shape.n_vocab, n_words, accept, self.seed, mtp=True, rare=rare > 0)
        name = f"mtp-{accept:g}" + (f"-rare-{rare}" if rare else "")
        target = self.path / f"{name}-{outtype}.gguf"
        with self._open():
            self._make_target(name, shape, cycle, target, outtype)
        return MTPFile(target, cycle)

    def blocks(self, accept: float, outtype: str, draft_type: str | None = None) -> PairFiles:
        """Return a target and its DFlash draft; `accept` is the rate of the first place of a block."""
        shape = SHAPES[self.shape]
        cycle = BlockCycle(shape, min(shape.n_draft_vocab, MTP_WORDS), accept, self.seed)
        draft_type = draft_type or outtype
        target = self.path / f"blocks-{outtype}.gguf"
        draft = self.path / f"dflash-{accept:g}-{draft_type}.gguf"
        with self._open():
            if not target.is_file():
                write = lambda hf: write_block_target(hf, shape, cycle, self.seed)  # noqa: E731
                self._make(write, "blocks", _convert_target, target, outtype)
            if not draft.is_file():
                convert = lambda hf, out, kind: _convert_draft(hf, target, out, kind)  # noqa: E731
                name = f"dflash-{accept:g}"
                self._make(lambda hf: write_block_draft(hf, shape, cycle, self.seed), name, convert, draft, draft_type)
        return PairFiles(target, draft, cycle)

    @contextmanager
    def _open(self) -> Iterator[None]:
        try:
            self._discard_stale()
            yield
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.path}: cannot be written ({error.strerror}). Choose another folder."
            ) from None

    def _make_target(self, name: str, shape: Shape, cycle: Cycle, out: Path, outtype: str) -> None:
        if not out.is_file():
            self._make(lambda hf: write_target(hf, shape, cycle, self.seed), name, _convert_target, out, outtype)

    def _make(
        self,
        write: Callable[[Path], None],
        name: str,
        convert: Callable[[Path, Path, str], None],
        out: Path,
        outtype: str,
    ) -> None:
        kept = self.path / name
        with tempfile.TemporaryDirectory(dir=self.path, prefix="making-") as temporary:
            checkpoint = kept
            if not kept.is_dir():
                self.log(f"writing the checkpoint of the {self.shape} {name}")
                checkpoint = Path(temporary) / name
                write(checkpoint)
                if self.keep:
                    checkpoint = checkpoint.rename(kept)
            self.log(f"converting it to {out.name}")
            convert(checkpoint, out, outtype)

    def _discard_stale(self) -> None:
        stamp_file, stamp = self.path / "stamp", f"{_source_hash(self.fresh)} {self.shape} {self.seed}\n"
        if stamp_file.is_file() and stamp_file.read_text() == stamp:
            return
        if stamp_file.is_file():  # without it the folder was not made by this code and must not be deleted
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        stamp_file.write_text(stamp)


def convert_pair(
    target: Path, draft: Path, folder: Path, outtype: str, log: Log = lambda text: None
) -> tuple[Path, Path]:
    """Convert Hugging Face checkpoints to GGUFs of the given type in `folder`; return target and draft."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"target-{outtype}.gguf", folder / f"draft-{outtype}.gguf"
    log(f"converting {target.name} and {draft.name} to {outtype}")
    _convert_target(target, out[0], outtype)
    _convert_draft(draft, target, out[1], outtype)
    return out


def _convert_target(checkpoint: Path, out: Path, outtype: str) -> None:
    convert_target(str(checkpoint), out, TargetOptions(outtype=outtype))


def _convert_draft(checkpoint: Path, target: Path, out: Path, outtype: str) -> None:
    convert_draft(checkpoint, target, out, DraftOptions(outtype=outtype))


def _source_hash(converter: bool) -> str:
    """Return a hash of the code that makes the files, because they must not outlive a change of it."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    makers = [here / f"{name}.py" for name in MAKERS]
    for path in (*makers, *(sorted(Path(llama_eagle.convert.__path__[0]).rglob("*.py")) if converter else ())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
