"""Write the reference of the Python API, as HTML: `make docs`.

    python packaging/reference.py FOLDER

It has the public names alone: those of `llama_eagle`, and of the module for libraries that construct `llama_cpp.Llama`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_eagle

MODULES = ("llama_eagle", "llama_eagle.integrations")


def write_reference(folder: Path) -> None:
    """Write index.html and a page for each module into `folder`."""
    import pdoc

    # pdoc reads a module's dictionary and does not ask `__getattr__`, which imports our names at their first use.
    vars(llama_eagle).update({name: getattr(llama_eagle, name) for name in llama_eagle.__all__})
    pdoc.pdoc(*MODULES, output_directory=folder)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
