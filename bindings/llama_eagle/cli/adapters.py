"""Options of the command line for adapters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import ADVANCED
from llama_eagle.errors import UsageError
from llama_eagle.files import expand_home
from llama_eagle.progress import conversion

if TYPE_CHECKING:
    from llama_eagle.convert.adapters import Merge


@dataclass(frozen=True)
class AdapterFlags:
    """Options for adapters of peft."""

    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Merge an adapter into its base model and convert the result. The adapter is the folder to convert, "
            "or next to the weights in it.",
        ),
    ] = False
    base: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER_OR_HUB_ID", help="Base model of the adapter to merge (default: the folder to convert)."
        ),
    ] = None
    ignore_adapter: Annotated[
        bool,
        typer.Option(
            "--ignore-adapter",
            help="Convert the weights although an adapter is next to them (adapter_config.json), without it.",
            rich_help_panel=ADVANCED,
        ),
    ] = False

    @property
    def ignored(self) -> bool:
        """True if the weights are opened without an adapter next to them."""
        return self.ignore_adapter or self.merge

    def check(self, target: str | None) -> None:
        """Raise `UsageError` for options that exclude each other."""
        if self.merge and self.ignore_adapter:
            raise UsageError("--merge and --ignore-adapter exclude each other. Leave one out.")
        if self.merge and target is not None:
            raise UsageError("--merge writes a model, for which --target has no meaning. Leave one out.")
        if self.base is not None and not self.merge:
            raise UsageError("--base names the model of an adapter to merge: give --merge, too.")

    def without_model(self, source: str, revision: str | None) -> Path | None:
        """Return the folder of an adapter alone; None for a model or a draft."""
        from llama_eagle.convert.adapters import adapter_folder

        return adapter_folder(source, revision)

    def model(self, source: str, revision: str | None) -> tuple[str, str | None]:
        """Return the checkpoint to convert, and its revision."""
        return (source, revision) if self.base is None else (self.base, None)

    def changes(self, source: str, revision: str | None, mmproj: Path | None) -> Merge | None:
        """Return the adapter to merge, if there is one."""
        if not self.merge:
            return None
        from llama_eagle.convert.adapters import Merge, read_adapter

        merge = Merge(read_adapter(self.without_model(source, revision) or expand_home(source), merging=True))
        if merge.changes_vision and mmproj is None:
            console.warn(f"{source}: its pairs of the vision encoder are merged into that of --mmproj alone")
        return merge


def convert_adapter(adapter: Path, target: str, out: Path, outtype: str) -> dict[str, Any]:
    """Convert an adapter folder to a GGUF for a target's GGUF, and return the report."""
    from llama_eagle.convert.adapters import convert_adapter

    path = expand_home(target)
    if not path.is_file():
        raise UsageError(f"--target {target}: an adapter needs the GGUF file of its model. Convert the model first.")
    with conversion() as meter:
        report = convert_adapter(adapter, path, out, outtype.lower(), meter)
    return {"kind": "adapter", **asdict(report)}
