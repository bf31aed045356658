"""Loads what a file describes and uses it, one file a line of stdin: TARGET, DRAFT or "-", and words: "quantize" it
first, prompt with "text" and not with tokens, "sample" and do not take the most likely. With "convert", TARGET is a
checkpoint's folder and DRAFT the target of the draft that it is: it becomes a GGUF, and "vision" one more; with "use",
these are used as well.

Answers with a line for each: "refused" (an EagleError), "ran", or "wrong" with the exception. Aborts end the process,
hangs are the reader's to end.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
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


def convert(source: Path, target: Path | None, words: list[str]) -> str:
    """By the command: one line of error and no file, or whole files that `check` and loading take."""
    out = source.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    options = ["--target", target] if target else ["--mmproj", out / "mmproj.gguf"] if "vision" in words else []
    code, errors = command("convert", source, "-o", out / "out.gguf", *options)
    written = sorted(path.name for path in out.iterdir())
    if code in (2, 3):
        assert len(errors) == 1 and not written, (errors, written)
        return f"refused {errors[0]}"
    assert code == 0 and not errors, (code, errors)
    assert written == (["mmproj.gguf", "out.gguf"] if "vision" in words else ["out.gguf"]), written
    pair = (target, out / "out.gguf") if target else (out / "out.gguf", None)
    found = check_models(*pair)
    assert found.compatible, found
    return use(*pair, []) if "use" in words else "ran"


def command(*words: object) -> tuple[int, list[str]]:
    """Exit status and lines of errors of a command that runs here."""
    from llama_eagle.cli import main as run

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            run([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, [line for line in errors.getvalue().splitlines() if not line.startswith("warning: ")]


def main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")  # sys.stdin is the command's
    for stream in (1, 2):  # native code writes to both, when it dies too
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for line in requests:
        target, draft, *words = line.rstrip("\n").split("\t")
        try:
            task = convert if "convert" in words else use
            outcome = task(Path(target), None if draft == "-" else Path(draft), words)
        except EagleError as error:
            outcome = f"refused {error}"
        except Exception as error:
            import traceback

            at = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"wrong {type(error).__name__} in {Path(at.filename).name}:{at.lineno}: {error}"
        print(" ".join(outcome.split())[:300], file=answers, flush=True)


if __name__ == "__main__":
    main()
