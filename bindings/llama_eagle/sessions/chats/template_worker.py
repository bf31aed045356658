"""Program that renders chat templates for chat_template.py: one request and one response per line.

{"template", "variables"} gives {"prompt"} or {"error"}. Templates see the same functions as in transformers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from functools import lru_cache
from types import GeneratorType
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SandboxedEnvironment

MIB = 1 << 20


class Generation(Extension):
    """The tag {% generation %}, which marks text for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    value = list(value) if isinstance(value, GeneratorType) else value  # of the filter `map`
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def refuse(message: object) -> None:
    """Implement `raise_exception` of templates."""
    raise ValueError(message)


@lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    # Templates for llama.cpp append to lists, which transformers refuses. The lists are this process's own.
    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Return the text. Without tools, `tools` is None, or undefined for a template that iterates over it."""
    try:
        return template.render(**variables)
    except TypeError:
        if variables.get("tools", ()) is not None:
            raise
    return template.render(**{name: value for name, value in variables.items() if name != "tools"})


def answer(request: dict[str, Any], n_characters: int) -> dict[str, str]:
    try:
        prompt = rendered(compiled(request["template"]), request["variables"])
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it recurses without end, or is nested too deeply"}
    except Exception as error:
        return {"error": f"{error or type(error).__name__}"[:500]}
    return {"prompt": prompt} if len(prompt) <= n_characters else {"error": f"it writes {len(prompt)} characters"}


def limit(n_mib: int, seconds: float) -> None:
    """Limit this process's memory and CPU time for the next request.

    This also ends the process if the parent was killed and cannot do so.
    """
    try:
        import resource
    except ImportError:  # Windows has none: the parent limits the time
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime + seconds) + 2
    for kind, value in ((resource.RLIMIT_AS, n_mib * MIB), (resource.RLIMIT_CPU, end), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of memory; the parent limits the time
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def main() -> None:
    n_characters, n_mib, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for line in sys.stdin.buffer:
        limit(n_mib, seconds)
        response = answer(json.loads(line), n_characters)
        sys.stdout.buffer.write(json.dumps(response).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
