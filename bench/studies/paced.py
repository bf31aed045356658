"""Builder of both engines with memory of a chosen bandwidth (pace.h), in a folder of their own.

    python bench/studies/paced.py FOLDER [--isa avx2|native]

Sources are copied there and changed: ours from this tree, llama.cpp's from the pinned release. Takes minutes; again, it
compiles what has changed in ours. Programs then read the bandwidth in GB/s from PACE_GBS (unset: no limit). Ours:
`LLAMA_EAGLE_LIB_PATH=FOLDER/lib PACE_GBS=12.5 llama-eagle`.
llama.cpp's tools are in FOLDER/peer/build/bin.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llama_eagle.bench.peer import Peer, build_peer
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.native.build import library_folder

ROOT = Path(__file__).resolve().parents[2]
PACE = Path(__file__).with_name("pace.h")
TOOLS = ("llama-speculative-simple", "llama-bench")
NO_PAGE = "-DLLAMA_EAGLE_PAGE=OFF"  # of the server
ISA = {  # options of cmake: ours, llama.cpp's
    "native": ((), ()),
    "avx2": (("-DLLAMA_EAGLE_SIMD=avx2",), ("-DGGML_NATIVE=OFF",)),
}
GRAPH = "src/ggml-cpu/eagle_graph.cpp"
# Text and the line after it. A step of our team ends when every ticket of a node has ended, so each ticket waits.
OURS = (
    ('#include "eagle_graph.h"\n', '#include "pace.h"\n'),
    ("        phases_ = index_ < graph_->n_nodes ? eagle_phases(node(), plan_->use_ref) : 0;\n",
     "        pace_start_ = pace_now_ns();\n"),
    ("        fused_.store(eagle_ggml_compute_node(graph_, index_, &params, plan_), std::memory_order_relaxed);\n",
     "        if (phase_ + 1 >= phases_) {\n            pace_wait(pace_start_, node());\n        }\n"),
    ("    std::atomic<int> fused_{0};\n", "    double pace_start_ = 0;\n"),
)  # fmt: skip
UPSTREAM = (
    ('#include "ggml-cpu-impl.h"\n', '#include "pace.h"\n'),
    ("        const int n_fused = ggml_cpu_try_fuse_ops(cgraph, node_n, &params, cplan);\n",
     "        const double pace_start = pace_now_ns();\n"),
    ("            ggml_compute_forward(&params, node);\n        }\n", "        pace_wait(pace_start, node);\n"),
)  # fmt: skip


def build_ours(folder: Path, isa: str = "avx2", renew: bool = False) -> Path:
    """Compile our ggml-cpu from a changed copy of native/; return its folder, with the installation's other libraries.

    Keeps an earlier build unless `renew` is set, which compiles what has changed in our sources.
    """
    folder = folder.resolve()
    lib, source, made = folder / "lib", folder / "ours", folder / "ours" / "build"
    if renew or not (lib / "libggml-cpu.so").is_file():
        shutil.copytree(ROOT / "native", source / "native", dirs_exist_ok=True)
        shutil.copy(ROOT / "CMakeLists.txt", source)
        _change(source / "native" / GRAPH, OURS)
        configure = ["cmake", "-S", str(source), "-B", str(made), "-DCMAKE_BUILD_TYPE=Release", *ISA[isa][0]]
        _run([*configure, "-DLLAMA_EAGLE_SERVER=OFF", NO_PAGE], folder / "ours.log")
        compile_ = ["cmake", "--build", str(made), "--parallel", str(os.cpu_count() or 1), "--target", "ggml-cpu"]
        _run(compile_, folder / "ours.log")
        shutil.copytree(library_folder(), lib, dirs_exist_ok=True)
        shutil.copy(made / "bin" / "libggml-cpu.so", lib)
    return lib


def build_upstream(folder: Path, isa: str = "avx2", tools: Sequence[str] = TOOLS) -> Peer:
    """Build llama.cpp's tools, or return those of an earlier build."""
    options = (*ISA[isa][1], NO_PAGE)
    return build_peer(tools=tools, folder=folder.resolve() / "peer", edit=_pace_upstream, options=options)


def _pace_upstream(source: Path) -> None:
    _change(source / "ggml" / "src" / "ggml-cpu" / "ggml-cpu.c", UPSTREAM)


def _change(path: Path, additions: Sequence[tuple[str, str]]) -> None:
    """Insert a line after each text, which must occur once, and put pace.h into the same folder."""
    text = path.read_text()
    for after, line in additions:
        if text.count(after) != 1:
            raise EnvironmentFailure(f"{path}: this text was expected once; correct paced.py:\n{after}")
        text = text.replace(after, after + line)
    path.write_text(text)
    shutil.copy(PACE, path.parent)


def _run(command: list[str], log: Path) -> None:
    with log.open("a") as file:
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode:
            raise EnvironmentFailure(f"`{' '.join(command[:4])}` failed. See {log}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--isa", choices=ISA, default="avx2")
    args = parser.parse_args()
    print(build_ours(args.folder, args.isa, renew=True), build_upstream(args.folder, args.isa).folder, sep="\n")


if __name__ == "__main__":
    main()
