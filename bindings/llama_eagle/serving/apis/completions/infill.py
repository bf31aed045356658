"""The text of a gap: llama.cpp's /infill, and `suffix` of OpenAI's completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from llama_eagle.serving.api_errors import Refusal, require
from llama_eagle.serving.apis.completions.bodies import check_own
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import Served, served
from llama_eagle.serving.passing import passed_on
from llama_eagle.serving.requests.json_body import read_json_body, without_nulls
from llama_eagle.sessions.infill import Gap, InfillTokens, infill_prompt

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

PATH = "/infill"
TEXTS = ("input_prefix", "input_suffix", "prompt")
KEYS = (*TEXTS, "input_extra")
LIMITS = ("n_predict", "max_tokens", "max_completion_tokens")  # names of one setting
SNIPPET = "\n\n--- snippet ---\n\n"  # before a file, for vocabularies without a token for it, as in llama.cpp
REPOSITORY, NO_NAME, THIS_FILE = "myproject\n", "tmp", "filename\n"  # as in llama.cpp
ANSWER_SHARE = 4  # of the context: what is kept free for an answer without a limit


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the route. prefix: that of all paths."""
    return [Route(f"{prefix}{PATH}", infill, methods=["POST"])]


async def infill(request: Request) -> Any:
    """Answer with the text between `input_prefix` and `input_suffix`, which `prompt` begins."""
    raw = await raw_infill(request.app, read_json_body(await request.body()))
    return await passed_on(request.app, slots.PATH, raw)


async def raw_infill(front: Front, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the raw request for a body of /infill. Raises `Refusal`."""
    body = read_infill(given)
    model = await served(front)
    raw = check_own({**{key: value for key, value in body.items() if key not in KEYS}, "prompt": 0}, model)
    marks = InfillTokens.of(model.infill)
    if marks is None:
        raise Refusal(501, "this model has no infill tokens, so it fills no gaps")
    prefix, suffix, begun = [await _tokens(front, body.get(key, "")) for key in TEXTS]
    before_file = [marks.file] if marks.file >= 0 else [SNIPPET]
    files = [await _tokens(front, [*before_file, *_parts(file, marks)]) for file in body.get("input_extra", ())]
    # A file alone has no head, unlike in llama.cpp: behind one, Qwen2.5-Coder 0.5B begins 4 of 8 gaps right, else 6.
    opening = await _tokens(front, [marks.repository, REPOSITORY]) if files and marks.repository >= 0 else ()
    head = await _tokens(front, [marks.file, THIS_FILE]) if files and marks.file >= 0 else ()
    return {**raw, "prompt": _prompt(Gap(prefix, suffix, begun, files, opening, head), marks, model, front, body)}


async def prompts_before(front: Front, prompts: Sequence[Any], suffix: str, body: Mapping[str, Any]) -> list[list[int]]:
    """Return the prompts of texts that end before a gap, with the text behind it. Raises `Refusal`."""
    model = await served(front)
    marks = InfillTokens.of(model.infill)
    if marks is None:
        raise Refusal(400, "this model has no infill tokens: leave out 'suffix'")
    behind = await _tokens(front, suffix)
    gaps = [Gap(await _tokens(front, prompt), behind) for prompt in prompts]
    return [_prompt(gap, marks, model, front, body) for gap in gaps]


def read_infill(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check a body of /infill, and return its keys with a value. Raises `Refusal`."""
    body = without_nulls(given)
    for key in TEXTS:
        require(isinstance(body.get(key, ""), str), f"'{key}' is no text")
    for key in TEXTS[:2]:
        require(key in body, f"'{key}' is required")
    files = body.get("input_extra", [])
    are_files = isinstance(files, list) and all(map(_is_file, files))
    require(are_files, "'input_extra' is no list of objects with a 'text' and a 'filename', which are texts")
    return body


def n_max_of(body: Mapping[str, Any], n_ctx: int) -> int:
    """Return the maximum length of a prompt in tokens, which leaves room for the answer."""
    given = next((body[name] for name in LIMITS if isinstance(body.get(name), int)), -1)
    return n_ctx - max(1, min(given if given >= 0 else n_ctx // ANSWER_SHARE, n_ctx // 2))


def _is_file(file: Any) -> bool:
    is_object = isinstance(file, dict) and isinstance(file.get("text"), str)
    return is_object and isinstance(file.get("filename") or "", str)


def _prompt(gap: Gap, marks: InfillTokens, model: Served, front: Front, body: Mapping[str, Any]) -> list[int]:
    return infill_prompt(
        marks, gap, bos=model.bos_ids, n_max=n_max_of(body, model.n_ctx), suffix_first=front.settings.spm_infill
    )


def _parts(file: Mapping[str, Any], marks: InfillTokens) -> list[str]:
    """Return the texts of a file: its name, for which there may be no place, and its text."""
    return [f"{file.get('filename') or NO_NAME}\n", file["text"]] if marks.file >= 0 else [file["text"]]


async def _tokens(front: Front, prompt: Any) -> list[int]:
    """Return the ids of a text, or of a list of texts and ids. Control tokens in texts are text."""
    body = {"content": prompt, "add_special": False, "parse_special": False}
    found: list[int] = (await slots.ask_json(front, "POST", "/tokenize", body))["tokens"] if prompt else []
    return found
