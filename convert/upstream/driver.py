"""Child process: llama.cpp's converter, without code of the checkpoint and without a network.

    python -m llama_eagle.convert.upstream.driver    # stdin: a request as JSON, one line; stdout: the result

The parent keeps stdin open: when it ends, this process ends too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llama_eagle.convert.pre_tokenizers import StoredEncoder, fitting_name
from llama_eagle.convert.source.storage import read_json
from llama_eagle.convert.tokenizer import added_around
from llama_eagle.convert.upstream import hparams, names
from llama_eagle.convert.upstream.process import REMEDY
from llama_eagle.convert.upstream.stored import decoded_tensors, without_quantization
from llama_eagle.errors import EagleError, EnvironmentFailure

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_LOCAL_GGUF": "1"}
TOKENIZERS = ("tokenizer.*", "tek*", "*vocab*", "*.tiktoken", "*.model")  # patterns of their files
NO_CODE = "needs code from its repository, which is never run"


class RefusedError(Exception):
    """A checkpoint that cannot be converted, with a message for the user."""


def forbid_code() -> None:
    """Make transformers load classes of its own alone, whatever a caller allows."""
    import transformers
    from transformers import dynamic_module_utils

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RefusedError(f"it {NO_CODE}")

    dynamic_module_utils.get_class_from_dynamic_module = refuse
    dynamic_module_utils.get_cached_module_file = refuse
    for name in ("AutoConfig", "AutoTokenizer"):  # the converter uses no other; AutoProcessor's import takes seconds
        _without_code(getattr(transformers, name))


def _without_code(auto: Any) -> None:
    plain = auto.from_pretrained

    def from_pretrained(source: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.update(trust_remote_code=False, local_files_only=True)
        try:
            return plain(source, *args, **kwargs)
        except Exception as error:
            file = Path(source) / "tokenizer.json"
            if auto.__name__ == "AutoTokenizer" and file.is_file():  # its class is of another or of no version
                from transformers import PreTrainedTokenizerFast

                return PreTrainedTokenizerFast.from_pretrained(source)
            if auto.__name__ == "AutoTokenizer" and not any(any(Path(source).glob(each)) for each in TOKENIZERS):
                raise RefusedError("it has no file of a tokenizer, such as tokenizer.json. Download it, too") from error
            if "remote" in str(error) or "trust_remote_code" in str(error):
                raise RefusedError(f"its tokenizer {NO_CODE}") from error
            raise

    auto.from_pretrained = staticmethod(from_pretrained)


def read_config(folder: Path, *, alone: bool = False) -> dict[str, Any]:
    """Return config.json as the converter expects it. alone: without the defaults of its class in transformers."""
    from transformers import AutoConfig

    stored = read_json(folder / "config.json")
    known: dict[str, Any] = {}
    if not alone:
        with contextlib.suppress(Exception):  # a class that transformers does not have
            known = AutoConfig.from_pretrained(folder).to_dict()
    return without_quantization(hparams.complete(hparams.overlay(known, stored), stored))


def prepare(request: dict[str, Any]) -> Any:
    """Replace the converter's readers of config.json and of tokenizers; return its module."""
    from conversion import MMPROJ_MODEL_MAP, TEXT_MODEL_MAP, base

    folder, encoder = Path(request["folder"]), bool(request["mmproj"])
    config = read_config(folder)
    hparams.state_class(config, MMPROJ_MODEL_MAP if encoder else TEXT_MODEL_MAP, encoder=encoder)
    if encoder and str(config.get("model_type")).startswith("qwen2"):
        config.pop("rms_norm_eps", None)  # the text model's, in published files: the encoder's is 1e-6
    loaded = SimpleNamespace(to_dict=lambda: deepcopy(config))
    base.AutoConfig = SimpleNamespace(from_pretrained=lambda *_args, **_kwargs: loaded)
    text = base.TextModel
    text.get_vocab_base_pre = _pre_tokenizers(text.get_vocab_base_pre, request["pre"])
    text._create_vocab_sentencepiece = _pieces(text._create_vocab_sentencepiece)
    _read_byte_level()
    _state_added_tokens(folder)
    if request["decoded"]:
        base.ModelBase.index_tensors = _decoded
    _name_tensors(base)
    return base


def _name_tensors(base: Any) -> None:
    """Read tensors that transformers 5 saves otherwise than published checkpoints have them."""
    from conversion.gemma import Gemma3NModel

    index = base.ModelBase.index_tensors
    Gemma3NModel.index_tensors = lambda self, **more: names.with_shared_keys(index(self, **more), self.hparams)
    base.MmprojModel.filter_tensors = names.encoder_names(base.MmprojModel.filter_tensors)


def _decoded(self: Any, remote_hf_model_id: str | None = None) -> dict[str, Any]:
    """Return the tensors that the converter asks for, dequantized."""
    from conversion.base import LazyTorchTensor

    found = (self.filter_tensors(item) for item in decoded_tensors(self.dir_model, LazyTorchTensor))
    return dict(item for item in found if item is not None)


def _pre_tokenizers(known: Callable[[Any, Any], str], given: str | None) -> Callable[[Any, Any], str]:
    """Name pre-tokenizers of unknown vocabularies by our own reader. given: the user's name."""

    def name_of(self: Any, tokenizer: Any) -> str:
        file = self.dir_model / "tokenizer.json"
        try:
            return given or known(self, tokenizer)
        except NotImplementedError:
            if not file.is_file():
                raise RefusedError("its pre-tokenizer is unknown. Name llama.cpp's name for it with --pre") from None
        return fitting_name(read_json(file), StoredEncoder(file))[0]

    return name_of


def _pieces(create: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Look for tokenizer.model before the package that reads it: without the file, classes have another way."""

    def read(self: Any) -> Any:
        if not (self.dir_model / "tokenizer.model").is_file():
            raise FileNotFoundError(f"{self.dir_model / 'tokenizer.model'} is missing")
        return create(self)

    return read


def _read_byte_level() -> None:
    """Read Phi-4, which has no tokenizer.model: its class decides by a name that transformers 5 changes."""
    from conversion.phi import Phi3MiniModel

    read = Phi3MiniModel.set_vocab

    def set_vocab(self: Any) -> None:
        has_pieces = (self.dir_model / "tokenizer.model").is_file()
        read(self) if has_pieces else self._set_vocab_gpt2()

    Phi3MiniModel.set_vocab = set_vocab


def _state_added_tokens(folder: Path) -> None:
    """State whether bos and eos surround a text: llama.cpp's default depends on the pre-tokenizer's name."""
    from gguf import vocab

    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not file.is_file():
        return
    read = [read_json(each) if each.is_file() else {} for each in (file, settings)]
    load = vocab.SpecialVocab._load

    def load_and_state(self: Any, path: Path) -> None:
        load(self, path)
        self.add_special_token.update(added_around(*read))

    vocab.SpecialVocab._load = load_and_state  # type: ignore[method-assign]


def convert(request: dict[str, Any]) -> dict[str, Any]:
    """Write the file of a request; return what the report states of it."""
    forbid_code()
    base = prepare(request)
    import gguf
    import torch
    from conversion import get_model_architecture, get_model_class

    folder, vision = Path(request["folder"]), bool(request["mmproj"])
    setattr(gguf, "fill_templated_filename", lambda name, _type: name)  # noqa: B010 - braces in a name are no template
    kinds = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
    with torch.inference_mode():
        config = base.ModelBase.load_hparams(folder, False)
        kind = base.ModelType.MMPROJ if vision else base.ModelType.TEXT
        chosen = get_model_class(get_model_architecture(config, kind), mmproj=vision)
        for flag in ("no_mtp", "mtp_only"):
            if request[flag]:
                if not chosen.supports_mtp_export:
                    raise RefusedError(f"--{flag.replace('_', '-')} does not apply to this architecture. Leave it out")
                setattr(chosen, flag, True)
        if size := request.get("vocab_size"):
            for each in _with_subclasses(base.TextModel):  # some classes call another's
                each.set_vocab = lambda self: _no_vocabulary(self.gguf_writer, size)
        file_type = gguf.LlamaFileType[kinds[request["outtype"]]]
        given = {"hparams": read_config(folder, alone=True)} if _reads_alone(chosen) else {}
        model = chosen(folder, file_type, Path(request["output"]), model_name=request["name"], **given)
        model.write()
    return {"class": chosen.__name__}


def _reads_alone(chosen: type) -> bool:
    """Return True for classes that read config.json themselves."""
    from conversion.mamba import Mamba2Model, MambaModel

    return issubclass(chosen, (MambaModel, Mamba2Model))


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


def _no_vocabulary(writer: Any, size: int) -> None:
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(size)


def _explained(error: BaseException) -> dict[str, str]:
    """Return a failure as {kind, message}."""
    if isinstance(error, RefusedError):
        return {"kind": "input", "message": str(error)}
    if isinstance(error, EagleError):
        return {"kind": "environment" if isinstance(error, EnvironmentFailure) else "input", "message": str(error)}
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0].replace("_", "-")
        return {"kind": "environment", "message": f"needs {package}: pip install {package}"}
    if isinstance(error, ImportError):  # of the converter itself: mistral-common
        return {"kind": "environment", "message": "needs mistral-common: pip install mistral-common"}
    if isinstance(error, (MemoryError, OSError)) and not isinstance(error, FileNotFoundError):
        return {"kind": "environment", "message": f"{type(error).__name__}: {error}"}
    text = " ".join(str(error).split())[:300] or "no reason given"
    if not isinstance(error, (ValueError, NotImplementedError)):
        text = f"{type(error).__name__}: {text}"
    return {"kind": "input", "message": f"llama.cpp's converter does not read it ({text}); {REMEDY}"}


class _Warnings(logging.Handler):
    """Keeps the converter's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the one request on stdin, then end the process."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the answer has nothing else that is printed
    os.environ.update(OFFLINE)
    sys.path[:0] = request["path"]
    kept = _Warnings()
    logging.getLogger().addHandler(kept)
    try:
        found = answer(request)
    except BaseException as error:
        traceback.print_exc()  # LLAMA_EAGLE_DEBUG=1 shows it
        found = {"error": _explained(error)}
    print(json.dumps({**found, "warnings": kept.lines}), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve(convert)
