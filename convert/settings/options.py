"""Options and report of a target's conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle.convert.dtypes import FILE_TYPE
from llama_eagle.convert.quantized import is_direct
from llama_eagle.convert.tokenizer import TokenizerCheck
from llama_eagle.convert.writer import Progress
from llama_eagle.errors import UsageError

if TYPE_CHECKING:
    from llama_eagle.quantize.quantize import QuantizeOptions

# Compares a GGUF's vocabulary with a tokenizer.model. Returns differences, each as a sentence.
PiecesCheck = Callable[[Path, Path], list[str]]

OWN, BY_LLAMA_CPP = "llama-eagle", "llama.cpp"  # the ways: a table of ours, or llama.cpp's converter


@dataclass(frozen=True)
class TargetOptions:
    """Options of a conversion.

    outtype: "auto" (as stored), f32, bf16, f16, q8_0, or any type of llama.cpp's quantizer.
    """

    outtype: str = "auto"
    mtp: bool = True  # keep the MTP block, if there is one
    mtp_only: bool = False  # write only that block, and the embeddings, norm and head that it needs
    calibration: Path | None = None  # text whose most frequent tokens are stored, for a trimmed draft head
    pre: str | None = None  # llama.cpp's name of the pre-tokenizer, if tokenizer.json's is unknown
    name: str | None = None  # general.name; default: that of the folder or hub id
    revision: str | None = None  # revision of a hub id
    split_max_size: int = 0  # bytes of tensor data per file; 0: one file
    progress: Progress | None = None
    check_tokenizer: TokenizerCheck | None = None  # compares the tokens before anything is written
    check_pieces: PiecesCheck | None = None  # the same for SentencePiece
    force_tokenizer: bool = False  # write a tokenizer whose tokens differ, with a warning
    encoder: Path | None = None  # file of llama.cpp's converter, which must run with the text model
    quantize: QuantizeOptions | None = None  # use llama.cpp's quantizer; implied by types that are not written directly

    def __post_init__(self) -> None:
        if self.mtp_only and not self.mtp:
            raise UsageError("--mtp-only and --no-mtp exclude each other")
        if self.split_max_size and (self.quantize or not is_direct(self.outtype.lower())):
            raise UsageError(f"--split-max-size works with the types {', '.join(FILE_TYPE)}, not with the quantizer")


@dataclass
class TargetReport:
    """Report of a conversion."""

    arch: str
    outtype: str
    outputs: list[Path]
    n_tensors: int
    n_params: int
    n_bytes: int
    n_layer: int
    n_mtp: int
    seconds: float
    way: str = OWN
    is_reranker: bool = False
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> number of source tensors
    warnings: list[str] = field(default_factory=list)
