"""Files that are not what their name says: their kind, by their first bytes, and the remedy.

A failed download leaves a web page, a server's message or a Git LFS pointer under the name of a model. Other files are
models in a format that this program does not read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from llama_eagle.files import refuse_special

GGUF, SAFETENSORS, TORCH = "a GGUF file", "a safetensors file", "a PyTorch checkpoint"
JSON, FOLDER = "a JSON file", "the folder of a checkpoint"
HEAD_BYTES = 4096
MAX_MANIFEST_BYTES = 1 << 20

AGAIN = "Download it again."
UNPACK = "Unpack it and give the file inside."
COMMAND = "llama-eagle convert FOLDER -o model.gguf"
CONVERT = f"Convert the folder that contains it and its config.json: {COMMAND}"
PICKLE = "a pickle (PyTorch's old format)"
OTHER = f"Download a GGUF file of the model, or convert its Hugging Face checkpoint: {COMMAND}"
RUN = "It needs no conversion: run it, or change its type with llama-eagle quantize."


class Kind(NamedTuple):
    """is_download: what a failed download leaves, never the content of a text that a model needs."""

    name: str
    remedy: str
    is_download: bool = False


# first bytes -> kind
MAGICS = {
    b"\x1f\x8b": Kind("a gzip archive", UNPACK),
    b"7z\xbc\xaf\x27\x1c": Kind("a 7z archive", UNPACK),
    b"\x28\xb5\x2f\xfd": Kind("a zstd archive", UNPACK),
    b"\xfd7zXZ\0": Kind("an xz archive", UNPACK),
    b"BZh": Kind("a bzip2 archive", UNPACK),
    b"\x04\x22\x4d\x18": Kind("an lz4 archive", UNPACK),
    b"Rar!\x1a\x07": Kind("a RAR archive", UNPACK),
    b"MZqFpD": Kind("a llamafile", "Take the GGUF file out of it: unzip FILE '*.gguf'"),
    b"MZ": Kind("a Windows program", AGAIN),
    b"\x7fELF": Kind("a program (ELF)", AGAIN),
    b"lmgg": Kind("a model in the old format GGML", OTHER),
    b"fmgg": Kind("a model in the old format GGMF", OTHER),
    b"tjgg": Kind("a model in the old format GGJT", OTHER),
    b"algg": Kind("an adapter in the old format GGLA", OTHER),
    b"\x89HDF\r\n\x1a\n": Kind("an HDF5 file (Keras)", OTHER),
    b"\x93NUMPY": Kind("a NumPy array", OTHER),
    b"\x89PNG": Kind("a PNG picture", AGAIN),
    b"\xff\xd8\xff": Kind("a JPEG picture", AGAIN),
    b"%PDF-": Kind("a PDF document", AGAIN),
}
WEB_PAGE = re.compile(r"(<[!?](--|xml)[^>]*>\s*)*<(!doctype html|html|head|body)\b", re.IGNORECASE)
POINTERS = {
    "version https://git-lfs.github.com/spec/": "Git LFS",
    "version https://hawser.github.com/spec/": "Git LFS",
    "/annex/objects/": "git-annex",
    "# xet version": "Xet",
}


def is_not(path: Path, wanted: str) -> str:
    """Return the message for a file that is not `wanted` (such as GGUF): its kind if it is known, and the remedy."""
    found = known_kind(path) or Kind("an unknown kind of file", AGAIN)
    if found.name == wanted:  # its beginning alone is right
        return f"{path}: damaged or truncated {wanted.partition(' ')[2]}. {AGAIN}"
    remedy = found.remedy
    if wanted == FOLDER and remedy == CONVERT:
        remedy = "Give the folder that contains it and its config.json."
    elif wanted not in (GGUF, FOLDER) and remedy in (CONVERT, OTHER, RUN):
        remedy = f"Give {wanted}, or download it again."
    return f"{path}: {found.name}, not {wanted}. {remedy}"


def known_kind(path: Path) -> Kind | None:
    """Return the kind of a file; None if its first bytes are of no known kind."""
    refuse_special(path)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(HEAD_BYTES)
    checks = (check(path, head, size) for check in (_empty, _magic, _packed, _tensors, _network, _text))
    return next((kind for kind in checks if kind), None)


def _empty(_path: Path, head: bytes, size: int) -> Kind | None:
    if not size:
        return Kind("an empty file", AGAIN)
    return None if any(head) else Kind("an unfinished download (it begins with zero bytes)", AGAIN)


def _magic(_path: Path, head: bytes, _size: int) -> Kind | None:
    if head.startswith(b"GGUF"):
        return Kind(GGUF, RUN)
    return next((kind for magic, kind in MAGICS.items() if head.startswith(magic)), None)


def _packed(_path: Path, head: bytes, _size: int) -> Kind | None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        is_torch = any(name in head for name in (b"/data.pkl", b"/byteorder", b"/.format_version"))
        return Kind(TORCH, CONVERT) if is_torch else Kind("a ZIP archive", UNPACK)
    return Kind("a tar archive", UNPACK) if head[257:262] == b"ustar" else None


def _tensors(_path: Path, head: bytes, _size: int) -> Kind | None:
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32:
        return Kind(SAFETENSORS, CONVERT)
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")
    return Kind(PICKLE, CONVERT) if is_pickle else None


def _network(_path: Path, head: bytes, _size: int) -> Kind | None:
    if head[4:8] == b"TFL3":
        return Kind("a TensorFlow Lite model", OTHER)
    # ONNX, a protobuf: ir_version, then the producer, the domain, the graph or the imported operators.
    is_onnx = head[:1] == b"\x08" and 3 <= head[1] < 32 and head[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42")
    return Kind("an ONNX model", OTHER) if is_onnx else None


def _text(path: Path, head: bytes, size: int) -> Kind | None:
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = head[: len(head) // 2 * 2].decode(encoding) if encoding == "utf-16" else _decoded(head)
    except UnicodeDecodeError:
        return None
    text = text.lstrip()
    if any(ord(character) < 32 and character not in "\t\n\r\f" for character in text):
        return None
    for check in (_pointer, _markup, _json):
        if found := check(path, text, size):
            return found
    if re.match(r"(#.*\n|\s)*FROM \S", text):
        return Kind("an Ollama Modelfile", "Give the GGUF file that its FROM line names.")
    return Kind(f"a text file ({_start(text)})", AGAIN)


def _decoded(head: bytes) -> str:
    """Return UTF-8 text whose last character may be cut off."""
    for cut in range(4):
        try:
            return head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            if len(head) < HEAD_BYTES:
                raise
    return head.decode("utf-8-sig")


def _start(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def _pointer(_path: Path, text: str, _size: int) -> Kind | None:
    name = next((name for start, name in POINTERS.items() if text.startswith(start)), None)
    if name is None:
        return None
    size = re.search(r"^size (\d+)$", text, re.MULTILINE)
    place = f", whose file has {int(size[1])} bytes" if size else ""
    pull = "Run `git lfs pull` in its repository, or download it again." if name == "Git LFS" else AGAIN
    return Kind(f"a {name} pointer{place}", pull, is_download=True)


def _markup(_path: Path, text: str, _size: int) -> Kind | None:
    if WEB_PAGE.match(text):
        title = re.search(r"<title[^>]*>([^<]+)", text, re.IGNORECASE)
        about = f", {_start(title[1])}" if title else ""
        link = "On the Hugging Face hub, the address of a file contains /resolve/, that of its page /blob/."
        return Kind(f"a web page (HTML{about})", f"Download the file itself. {link}", is_download=True)
    return Kind(f"an XML text ({_start(text)})", AGAIN) if text.startswith("<") else None


def _json(path: Path, text: str, size: int) -> Kind | None:
    if not text.startswith(("{", "[")):
        return None
    if "vnd.ollama.image" in text and size <= MAX_MANIFEST_BYTES:
        return Kind("an Ollama manifest", f"Give {_ollama_model(path)} in the folder blobs of Ollama's models.")
    if re.search(r'"(architectures|model_type|weight_map)"', text):
        return Kind("the settings of a checkpoint (JSON)", CONVERT)
    return Kind(f"a JSON text ({_start(text)})", AGAIN)


def _ollama_model(path: Path) -> str:
    """Return the name of the blob with the model, as the manifest gives it."""
    try:
        layers = json.loads(path.read_text("utf-8"))["layers"]
        digest = next(each["digest"] for each in layers if each["mediaType"] == "application/vnd.ollama.image.model")
        return str(digest).replace(":", "-")
    except (ValueError, KeyError, TypeError, StopIteration):
        return "the model's blob"
