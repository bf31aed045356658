"""Support for libraries that construct `llama_cpp.Llama` themselves: LangChain, LlamaIndex and others.

from llama_eagle.integrations import patch_llama_cpp

with patch_llama_cpp(draft_path="draft.gguf"):
    llm = ChatLlamaCpp(model_path="target.gguf")  # langchain_community; or LlamaCPP of llama_index
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import llama_cpp

from llama_eagle.drop_in.llama import EagleLlama
from llama_eagle.drop_in.options import EAGLE_PARAMETERS, PARENT_PARAMETERS, EagleOptions


class patch_llama_cpp:
    """Replace `llama_cpp.Llama` by `EagleLlama`, also in modules that have imported it by name.

    `defaults` apply to arguments that a library does not pass. Arguments that `llama_cpp.Llama` ignores, such as
    LangChain's `f16_kv`, are ignored here too. Batches too small for a round are enlarged. The patch is in effect from
    the call until `undo()` or the end of a with block.
    """

    def __init__(self, **defaults: Any) -> None:
        self._original = llama_cpp.Llama
        self._holders = [
            module
            for name, module in list(sys.modules.items())
            if not name.startswith("llama_eagle") and name != "llama_cpp.llama"
            if vars(module).get("Llama") is self._original
        ]
        patched = _with_defaults(defaults)
        for module in self._holders:
            module.Llama = patched  # type: ignore[attr-defined]

    def undo(self) -> None:
        for module in self._holders:
            module.Llama = self._original  # type: ignore[attr-defined]

    def __enter__(self) -> patch_llama_cpp:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.undo()


def _with_defaults(defaults: dict[str, Any]) -> type[EagleLlama]:
    known = {*PARENT_PARAMETERS, *EAGLE_PARAMETERS}

    class Llama(EagleLlama):
        def __init__(self, model_path: str, **given: Any) -> None:
            taken = {**defaults, **{name: value for name, value in given.items() if name in known}}
            n_draft = taken.get("n_draft")
            longest = taken.get("n_draft_max", EagleOptions.n_draft_max)
            smallest = (max(longest, n_draft) if isinstance(n_draft, int) else longest) + 2
            for name in ("n_batch", "n_ubatch"):  # LangChain's default of 8 is below what a round needs
                taken[name] = max(taken.get(name, PARENT_PARAMETERS[name]), smallest)
            super().__init__(model_path, **taken)

    return Llama
