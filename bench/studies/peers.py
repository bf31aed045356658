"""Real models in our engine and in those of others that package registries have, alternating.

    python bench/studies/peers.py FOLDER MODEL.gguf [--draft EAGLE3.gguf] [--small SMALL.gguf] [--out MACHINE.json]
        [--peers llama.cpp openvino ...] [--ik BIN] [--runs 3] [--busy] [--limit 9] [--seconds 560]

| engine | source | sides |
|---|---|---|
| llama.cpp | compiled from the pinned sdist of llama-cpp-python | no drafts, its look-ups, drafts of 2 and 4 tokens |
| ik_llama.cpp | --ik: the folder of your llama-server | no drafts |
| openvino | wheel of OpenVINO GenAI | no drafts, look-up, --small |
| mistral.rs | wheel | no drafts |
| llama-cpp-python | wheel, compiled from the sdist here | no drafts, look-up |
| mlx-lm | wheels of mlx-lm and of mlx for Linux | no drafts |

A turn starts each side in a process of its own: a code edit and an answer to a question (128 tokens, greedy), and for
sides without drafts prompts of 512 and 4,096 tokens. Results are medians of `--runs` turns: tokens/s, the peak memory
of the process with a context of 8,192 tokens, and seconds from its start to the answer's first token (warm file cache).

--busy: another program computes on the first core. --limit: GB/s of memory bandwidth (paced.py) for ours and llama.cpp,
which are compiled here. FOLDER keeps environments, builds and every measurement. A call measures what is missing and
starts no side after `--seconds`, so that short calls on an idle machine add up. --out: adds the results to that file.

OpenVINO and mlx-lm do not read every GGUF: --as openvino=FILE gives an engine the same model in another form. A side
that fails says why in its cell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from busy import load
from llama_eagle.bench.peer import LOOKUPS, SERVER, build_peer
from llama_eagle.bench.prompts import read_prompts
from llama_eagle.drafting.options import LOOKUP, NONE
from llama_eagle.gguf.header import read_model
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.text import Tokenizer, chat_text, has_chat_template
from paced import build_ours, build_upstream

ENGINES = Path(__file__).with_name("peer_engines.py")
OURS, LLAMA_CPP, IK = "llama-eagle", "llama.cpp", "ik_llama.cpp"
PACKAGES = {
    "openvino": ("openvino-genai==2026.4.*",),
    "mistral.rs": ("mistralrs==0.9.5",),
    "llama-cpp-python": ("llama-cpp-python==0.3.36", "--no-binary=llama-cpp-python", "--no-cache-dir"),
    "mlx-lm": ("mlx-lm", "mlx[cpu]"),
}
OUR_LIBRARIES = ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB")  # set by importing llama_eagle
N_TOKENS, WARM_UP, CONTEXT, THREADS = 128, 16, 8192, 2
PROMPTS = (512, 4096)
QUESTION = "Explain how a compiler turns a loop into machine code, step by step."
PEER_LENGTHS = (2, 4)


@dataclass(frozen=True)
class Side:
    """An engine and its drafter. command: starts peer_engines.py. options: for it."""

    engine: str
    drafter: str
    python: Path
    worker: str
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


# --- engines -------------------------------------------------------------------------------------------------------


def install(folder: Path, engine: str) -> Path:
    """Return the Python of an environment with an engine's packages."""
    home = folder / engine
    python = home / "bin" / "python"
    if not (home / "installed").is_file():
        venv.create(home, with_pip=True, clear=True)
        with (folder / f"{engine}.log").open("w") as log:
            subprocess.run([python, "-m", "pip", "install", *PACKAGES[engine]], stdout=log, stderr=log, check=True)
        (home / "installed").touch()
    return python


def version(python: Path, engine: str) -> str:
    name = PACKAGES[engine][0].partition("=")[0]
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def our_sides(args: argparse.Namespace) -> Iterator[Side]:
    limit = {"LLAMA_EAGLE_LIB_PATH": str(build_ours(args.folder, "native")), **pace(args)} if args.limit else {}
    named: dict[str, dict[str, Any]] = {
        "": {"drafter": NONE}, "look-up": {"drafter": LOOKUP}, "EAGLE-3": {"draft": args.draft},
        "small model": {"draft": args.small},
    }  # fmt: skip
    for drafter, options in named.items():
        if options.get("drafter") or options["draft"]:
            yield Side(OURS, drafter, Path(sys.executable), "ours", {"drafting": {}, **options}, limit)


def pace(args: argparse.Namespace) -> dict[str, str]:
    return {"PACE_GBS": str(args.limit)} if args.limit else {}


def server_sides(args: argparse.Namespace) -> Iterator[Side]:
    """Yield the sides of llama.cpp."""
    build = build_upstream(args.folder, "native", (SERVER,)) if args.limit else build_peer(tools=(SERVER,))
    drafters: dict[str, list[str]] = {"": [], **{kind: ["--spec-type", kind] for kind in LOOKUPS}}
    for name, kind, file in (("EAGLE-3", "draft-eagle3", args.draft), ("small model", "draft-simple", args.small)):
        for n in PEER_LENGTHS if file else ():
            threads = ["-td", str(THREADS), "-tbd", str(THREADS)]
            drafters[f"{name} ({n})"] = ["--spec-type", kind, "-md", file, "--spec-draft-n-max", str(n), *threads]
    for drafter, arguments in drafters.items():
        yield server_side(LLAMA_CPP, drafter, build.folder, arguments, pace(args))


def server_side(engine: str, drafter: str, folder: Path, arguments: list[str], environment: dict[str, str]) -> Side:
    options = {"binary": str(folder / SERVER), "arguments": arguments}
    return Side(engine, drafter, Path(sys.executable), "server", options, environment)


def sides_of(args: argparse.Namespace) -> Iterator[Side]:
    yield from our_sides(args)
    if LLAMA_CPP in args.peers:
        yield from server_sides(args)
    if args.ik:
        yield server_side(IK, "", Path(args.ik), [], {})
    for engine in () if args.limit else (engine for engine in PACKAGES if engine in args.peers):
        python, threads = install(args.folder, engine), {"RAYON_NUM_THREADS": str(THREADS)}
        drafters: dict[str, dict[str, Any]] = {"": {}}
        if engine in ("openvino", "llama-cpp-python"):
            drafters["look-up"] = {"drafter": LOOKUP}
        if engine == "openvino" and args.small:
            drafters["small model"] = {"draft": args.small}
        for drafter, options in drafters.items():
            yield Side(engine, drafter, python, engine, options, threads)


# --- measurements --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jobs:
    """Texts by cell, and whether a side without drafts alone reads them."""

    texts: dict[str, str]

    @classmethod
    def of(cls, path: Path) -> Jobs:
        """Return the jobs; prompts have their numbers of the model's tokens."""
        edit = next(p for p in read_prompts([LOOKUP]) if "edit" in p.category).turns[0]
        long = " ".join(turn for p in read_prompts(["chat", "math", LOOKUP]) for turn in p.turns)
        with contextlib.closing(Model(path)) as model:
            tokenizer = Tokenizer(model)
            asked = {"edit": edit, "chat": QUESTION}
            if has_chat_template(model):
                asked = {name: chat_text(model, [{"role": "user", "content": text}]) for name, text in asked.items()}
            ids = tokenizer.encode(long) * (max(PROMPTS) // 1000 + 1)
            cut = {str(n): b"".join(map(tokenizer.piece, ids[:n])).decode(errors="ignore") for n in PROMPTS}
        return cls(asked | cut)


def start(side: Side, args: argparse.Namespace) -> subprocess.Popen[str]:
    forms = {engine: absolute(path) for engine, path in (each.split("=", 1) for each in args.other_forms)}
    given = {"model": forms.get(side.engine, str(args.model)), "draft": None, "threads": THREADS, "context": CONTEXT}
    command = [str(side.python), str(ENGINES), side.worker, json.dumps({**given, **side.options})]
    log = (args.folder / "engines.log").open("a")
    environment = {**os.environ, **side.environment}
    if side.engine != OURS:  # llama-cpp-python would load our library
        for name in OUR_LIBRARIES:
            environment.pop(name, None)
    # In the folder, because ik_llama.cpp writes a log where it is started.
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=args.folder, env=environment, text=True
    )


def measure(side: Side, jobs: Jobs, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one process: tokens/s by text, MiB, seconds to the first token; or a failure."""
    found: dict[str, Any] = {}
    with start(side, args) as process:
        try:
            loaded = _answer(process)["load_s"]
            found["first_token_s"] = loaded + _ask(process, jobs.texts["chat"], 1)["first_s"]
            _ask(process, jobs.texts["chat"], WARM_UP)
            for name, text in jobs.texts.items():
                if not name.isdigit():
                    answer = _ask(process, text, N_TOKENS)
                    found[name] = (answer["n"] - 1) / answer["decode_s"]
                    found["peak_mib"] = answer["peak_mib"]
                elif not side.drafter:
                    answer = _ask(process, text, 1)
                    found[name] = answer["n_prompt"] / answer["first_s"]
        except (ValueError, OSError, ZeroDivisionError):
            found["failure"] = _last_line(args.folder / "engines.log")
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=60)  # at the end of its input it ends its server
            process.kill()
    return found


def _ask(process: subprocess.Popen[str], prompt: str, n: int) -> dict[str, Any]:
    assert process.stdin
    process.stdin.write(json.dumps({"prompt": prompt, "n": n}) + "\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    return dict(json.loads(process.stdout.readline()))


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no reason given"


def run(args: argparse.Namespace, store: Path) -> None:
    """Measure what the store lacks, alternating between sides, until the time is over."""
    end, jobs, sides = time.monotonic() + args.seconds, Jobs.of(args.model), list(sides_of(args))
    with load("one") if args.busy else contextlib.nullcontext():
        for turn in range(args.runs):
            for side in sides:
                found = json.loads(store.read_text()) if store.is_file() else {}
                runs = found.setdefault(side.engine, {}).setdefault(side.drafter, [])
                if len(runs) > turn or any("failure" in each for each in runs):
                    continue
                if time.monotonic() > end:
                    return
                runs.append(measure(side, jobs, args))
                store.write_text(json.dumps(found, indent=1))
                print(f"{side.engine} {side.drafter}: {runs[-1]}", file=sys.stderr, flush=True)


# --- results -------------------------------------------------------------------------------------------------------


def summary(args: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Return the medians of a model."""
    header = read_model(args.model)[1][0]
    name, kind = args.name or str(header.keys.get("general.name")), args.type or args.model.stem
    found: dict[str, Any] = {"model": name, "type": kind, "date": datetime.now(timezone.utc).date().isoformat()}
    found |= {"busy": True} if args.busy else {}
    found |= {"limit": args.limit} if args.limit else {}
    found["sides"] = [
        {"engine": engine, "drafter": drafter, **medians(runs)}
        for engine, drafters in json.loads(store.read_text()).items()
        for drafter, runs in drafters.items()
    ]
    return found


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    if failures := [each["failure"] for each in runs if "failure" in each]:
        return {"failure": failures[0]}
    return {name: float(f"{median(each[name] for each in runs):.3g}") for name in runs[0]}


def add(out: Path, model: dict[str, Any], versions: dict[str, str]) -> None:
    """Add a model to the `peers` section of a machine's file, or replace it there."""
    machine = json.loads(out.read_text())
    section = machine.setdefault("peers", {"versions": {}, "models": []})
    section["versions"] |= versions
    same = ("model", "type", "busy", "limit")
    kept = [each for each in section["models"] if any(each.get(key) != model.get(key) for key in same)]
    section["models"] = [*kept, model]
    out.write_text(layout(machine))


def layout(machine: dict[str, Any]) -> str:
    """Return a machine's JSON with one line for each entry of a section."""

    def lines(value: Any, depth: int) -> str:
        indent = "  " * depth
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(f"{indent}  {lines(each, depth + 1)}" for each in value) + f"\n{indent}]"
        if isinstance(value, dict) and any(isinstance(each, (dict, list)) for each in value.values()):
            pairs = (f"{json.dumps(key)}: {lines(each, depth)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        return json.dumps(value, ensure_ascii=False)

    sections = (f"  {json.dumps(key)}: {lines(value, 1)}" for key, value in machine.items())
    return "{\n" + ",\n".join(sections) + "\n}\n"


def table(model: dict[str, Any]) -> Iterator[str]:
    """Yield Markdown."""
    columns = ("edit", "chat", *map(str, PROMPTS), "peak_mib", "first_token_s")
    yield f"| engine | drafter | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 2) + "|"
    for side in model["sides"]:
        cells = [f"{side[name]:,g}" if name in side else "" for name in columns]
        yield f"| {side['engine']} | {side['drafter']} | {side.get('failure') or ' | '.join(cells)} |"


def absolute(path: str) -> str:
    return str(Path(path).resolve())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of environments, builds and measurements")
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=absolute, help="its EAGLE-3 draft")
    parser.add_argument("--small", type=absolute, help="a small model of its family")
    parser.add_argument("--name", help="the model's name in the results (default: that in the file)")
    parser.add_argument("--type", help="its weight type in the results (default: the name of the file)")
    parser.add_argument("--peers", nargs="*", choices=[LLAMA_CPP, *PACKAGES], default=[LLAMA_CPP, *PACKAGES])
    parser.add_argument("--ik", type=absolute, help="folder with the llama-server of an ik_llama.cpp build")
    parser.add_argument("--as", dest="other_forms", nargs="*", default=[], metavar="ENGINE=FILE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--limit", type=float, default=0.0, metavar="GB/S")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time of this call (default: no limit)")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, help="JSON file of the machine in bench/results")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.folder, args.model = args.folder.resolve(), args.model.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    parts = (args.model.stem, "busy" if args.busy else "", f"{args.limit:g}" if args.limit else "")
    store = args.folder / f"measured-{'-'.join(filter(None, parts))}.json"
    if not args.report:
        run(args, store)
    model = summary(args, store)
    print(*table(model), sep="\n")
    if args.out:
        used = {side["engine"] for side in model["sides"]} & {*PACKAGES}
        add(args.out, model, {engine: version(install(args.folder, engine), engine) for engine in sorted(used)})


if __name__ == "__main__":
    main()
