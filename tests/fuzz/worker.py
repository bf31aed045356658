"""Loads what a file describes and uses it, one file a line of stdin: TARGET, DRAFT or "-", and words: "quantize" it
first, prompt with "text" and not with tokens, "sample" and do not take the most likely.

Answers with a line for each: "refused" (an EagleError), "ran", or "wrong" with the exception. Aborts end the process,
hangs are the reader's to end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from llama_eagle.errors import EagleError
from llama_eagle.gguf.pairing import check_models, require_models


def use(target: Path, draft: Path | None, words: list[str]) -> str:
    """`check` and loading agree, and what both take can be generated with."""
    is_sound = check_models(target, draft).compatible
    require_models(target, draft)
    assert is_sound
    if "quantize" in words:
        from llama_eagle.quantize.quantize import QuantizeOptions, quantize

        quantize(target, target.with_suffix(".q8_0"), "q8_0", QuantizeOptions(threads=1, requantize=True))
    from llama_eagle import EagleLlama

    options = {"n_ctx": 64, "n_threads": 1, "n_batch": 64, "n_draft_max": 4, "verbose": False}
    with EagleLlama(str(target), draft_path=draft, **options) as llm:
        prompt = "The qu\u00efck \u72d0 <|im_end|>\n" if "text" in words else [5, 6, 7, 8]
        llm.create_completion(prompt, max_tokens=5, temperature=0.8 if "sample" in words else 0)
    return "ran"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for stream in (1, 2):  # native code writes to both, when it dies too
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for line in sys.stdin:
        target, draft, *words = line.rstrip("\n").split("\t")
        try:
            outcome = use(Path(target), None if draft == "-" else Path(draft), words)
        except EagleError as error:
            outcome = f"refused {error}"
        except Exception as error:
            import traceback

            at = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"wrong {type(error).__name__} in {Path(at.filename).name}:{at.lineno}: {error}"
        print(" ".join(outcome.split())[:300], file=answers, flush=True)


if __name__ == "__main__":
    main()
