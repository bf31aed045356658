"""The files of llama.cpp's converter, and the classes that it knows."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import has_pieces
from llama_eagle.convert.upstream import hparams
from llama_eagle.errors import ConfigError, EnvironmentFailure
from llama_eagle.native.build import library_folder

TEXT, ENCODER = "TEXT_MODEL_MAP", "MMPROJ_MODEL_MAP"  # tables in conversion/__init__.py


def converter_folders() -> list[Path]:
    """Return the folders of the packages `conversion` and `gguf`: of the installed package, or of a build's source.

    Raises `EnvironmentFailure` if the build left them out.
    """
    library = library_folder()
    source = library.parent / "upstream"
    for folders in ([library / "converter"], [source, source / "gguf-py"]):
        if (folders[0] / "conversion/__init__.py").is_file():
            return folders
    raise EnvironmentFailure(f"{library} has no converter of llama.cpp. Reinstall llama-eagle.")


@cache
def known_classes(table: str = TEXT) -> tuple[str, ...]:
    """Return the names of classes in a table of llama.cpp's converter, without importing it."""
    tree = ast.parse((converter_folders()[0] / "conversion/__init__.py").read_text("utf-8"))
    found = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and _name(node.target) == table]
    return tuple(ast.literal_eval(found[0])) if found else ()  # type: ignore[arg-type]


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def require_packages(checkpoint: Checkpoint) -> None:
    """Raise `EnvironmentFailure` for a package that the converter needs for this checkpoint."""
    files = {name: (checkpoint.path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tekken.json")}
    needed = ["torch", "transformers"]
    if has_pieces(checkpoint):
        needed.append("sentencepiece")
    if files["tekken.json"] and not files["tokenizer.json"] and not files["tokenizer.model"]:
        needed.append("mistral_common")
    missing = [name.replace("_", "-") for name in needed if find_spec(name) is None]
    if missing:
        raise EnvironmentFailure(
            f"{checkpoint.source} is converted by llama.cpp's converter, which needs {' and '.join(missing)} here: pip "
            f"install {' '.join(missing)}"
        )


def class_names(config: dict[str, Any]) -> list[str]:
    """Return the classes that config.json names: that of its text model first, as in llama.cpp's converter."""
    return [*map(str, hparams.stated_classes(hparams.text_part(config), config))]


def require_class(config: dict[str, Any], where: str, others: Iterable[str] = (), table: str = TEXT) -> str:
    """Return the class of a checkpoint that llama.cpp's converter knows.

    others: classes that are converted otherwise, for the message. Raises `ConfigError` if it knows none.
    """
    known = known_classes(table)
    if found := hparams.known_class(config, known, encoder=table == ENCODER):
        return found
    names = class_names(config)
    if table == ENCODER:
        raise ConfigError(f"{where}: {names!r:.80} has no encoder that is supported. Leave --mmproj out.")
    raise ConfigError(
        f"{where}: architecture {names[0] if names else None!r} is not supported. Tables exist for "
        f"{', '.join(others)}; llama.cpp's converter has {len(known)} more (llama-eagle convert --list)"
    )
