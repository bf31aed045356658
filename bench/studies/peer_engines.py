"""Engines of peers.py, each in a process of its own, with the Python of the environment that has the engine.

    python peer_engines.py NAME '{"model": FILE, "draft": FILE or null, "threads": 2, "context": 8192, ...}'

Reads jobs from stdin, {"prompt": TEXT, "n": TOKENS} in a line, and answers each with a line of JSON: `n_prompt` and `n`
tokens, `first_s` from the job to the first token, `decode_s` from there to the last one, `peak_mib` of the process.
Decoding is greedy, and no prompt finds an earlier one in a cache. Only llama-eagle's own engine imports llama-eagle.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# The loopback address without a proxy; environments of other engines lack llama_eagle's opener.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Options = dict[str, Any]
Run = Callable[..., dict[str, Any]]  # run(prompt=str, n=int)


def timed(start: float, tokens: Iterable[Any], n: int) -> dict[str, Any]:
    """Return the times of the first and of the last of at most n tokens."""
    times = []
    for _ in tokens:
        times.append(time.perf_counter())
        if len(times) == n:
            break
    return {"n": len(times), "first_s": times[0] - start, "decode_s": times[-1] - times[0]}


@contextlib.contextmanager
def ours(options: Options) -> Iterator[Run]:
    from llama_eagle import EagleLlama

    yield binding(EagleLlama, options, draft=options["draft"] or options.get("drafter", "none"), **options["drafting"])


@contextlib.contextmanager
def llama_cpp_python(options: Options) -> Iterator[Run]:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter = LlamaPromptLookupDecoding() if options.get("drafter") == "lookup" else None
    yield binding(llama_cpp.Llama, options, draft_model=drafter)


def binding(kind: Any, options: Options, **drafting: Any) -> Run:
    threads = {"n_threads": options["threads"], "n_threads_batch": options["threads"]}
    llm = kind(options["model"], n_ctx=options["context"], verbose=False, **threads, **drafting)

    def run(prompt: str, n: int) -> dict[str, Any]:
        start = time.perf_counter()
        tokens = llm.tokenize(prompt.encode(), special=True)
        llm.reset()
        return {"n_prompt": len(tokens), **timed(start, llm.generate(tokens, temp=0.0), n)}

    return run


@contextlib.contextmanager
def server(options: Options) -> Iterator[Run]:
    """Run a llama-server of llama.cpp or ik_llama.cpp. binary: its path. arguments: further ones."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    threads = str(options["threads"])
    command = [options["binary"], "-m", options["model"], "--port", port, "-t", threads, "-tb", threads]
    command += ["-c", str(options["context"]), "--parallel", "1", *options["arguments"]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            options["pid"] = process.pid
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/health", process)
            yield lambda prompt, n: complete(address, prompt, n)
        finally:
            process.terminate()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError):
            OPENER.open(address).close()
            return
        time.sleep(0.01)
    raise SystemExit(f"it ended with exit code {process.returncode}")


def complete(address: str, prompt: str, n: int) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    start = time.perf_counter()
    with OPENER.open(request) as response:
        timings = json.load(response)["timings"]
    decode = timings["predicted_ms"] / 1e3
    first = time.perf_counter() - start - decode
    return {"n_prompt": timings["prompt_n"], "n": timings["predicted_n"] + 1, "first_s": first, "decode_s": decode}


@contextlib.contextmanager
def openvino(options: Options) -> Iterator[Run]:
    import openvino_genai

    lookup = options.get("drafter") == "lookup"
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": options["threads"], "prompt_lookup": lookup}
    if options["draft"]:
        settings["draft_model"] = openvino_genai.draft_model(options["draft"], "CPU")
    pipeline = openvino_genai.LLMPipeline(options["model"], "CPU", **settings)
    drafting = {"num_assistant_tokens": 5, "max_ngram_size": 3} if lookup else {}
    drafting |= {"num_assistant_tokens": 4} if options["draft"] else {}

    def run(prompt: str, n: int) -> dict[str, Any]:
        tokens = pipeline.get_tokenizer().encode(prompt, add_special_tokens=True)
        start = time.perf_counter()
        metrics = pipeline.generate(
            tokens, max_new_tokens=n, ignore_eos=True, do_sample=False, apply_chat_template=False, **drafting
        ).perf_metrics
        first = metrics.get_ttft().mean / 1e3
        seconds = time.perf_counter() - start
        counts = {"n_prompt": metrics.get_num_input_tokens(), "n": metrics.get_num_generated_tokens()}
        return {**counts, "first_s": first, "decode_s": seconds - first}

    yield run


@contextlib.contextmanager
def mistral(options: Options) -> Iterator[Run]:
    import mistralrs

    path = Path(options["model"])
    runner = mistralrs.Runner(mistralrs.Which.GGUF(str(path.parent), path.name), prefix_cache_n=0, no_paged_attn=True)

    def run(prompt: str, n: int) -> dict[str, Any]:
        request = mistralrs.CompletionRequest(prompt, "default", max_tokens=n, temperature=0.0, ignore_eos=True)
        usage = runner.send_completion_request(request).usage
        counts = {"n_prompt": usage.prompt_tokens, "n": usage.completion_tokens}
        return {**counts, "first_s": usage.total_prompt_time_sec, "decode_s": usage.total_completion_time_sec}

    yield run


@contextlib.contextmanager
def mlx(options: Options) -> Iterator[Run]:
    import mlx_lm

    model, tokenizer = mlx_lm.load(options["model"])[:2]

    def run(prompt: str, n: int) -> dict[str, Any]:
        tokens = tokenizer.encode(prompt, add_special_tokens=False)
        start = time.perf_counter()
        stream = mlx_lm.stream_generate(model, tokenizer, tokens, max_tokens=n)
        return {"n_prompt": len(tokens), **timed(start, stream, n)}

    yield run


ENGINES: dict[str, Callable[[Options], contextlib.AbstractContextManager[Run]]] = {
    "ours": ours, "llama-cpp-python": llama_cpp_python, "server": server, "openvino": openvino, "mistral.rs": mistral,
    "mlx-lm": mlx,
}  # fmt: skip


def peak_mib(pid: int) -> float:
    """Return the largest amount of memory that a process has held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else 0.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines write to stdout
    options = json.loads(sys.argv[2])
    start = time.perf_counter()
    with ENGINES[sys.argv[1]](options) as run:
        print(json.dumps({"load_s": time.perf_counter() - start}), file=answers, flush=True)
        for line in sys.stdin:
            found = run(**json.loads(line))
            found["peak_mib"] = peak_mib(options.get("pid", os.getpid()))
            print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
