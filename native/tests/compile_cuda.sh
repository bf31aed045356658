#!/usr/bin/env bash
# Compiles our CUDA sources, and llama.cpp's dispatch that calls them, for the supported architectures. Needs nvcc, but no GPU
# and no cuBLAS: if the toolkit lacks cuBLAS headers, it uses those of the PyPI package nvidia-cublas. Prints the maximum
# number of registers of a kernel and the spilled bytes by architecture; fails if one of our kernels spills.
#
#   native/tests/compile_cuda.sh PATCHED_LLAMA_CPP     a tree made by native/cmake/upstream.py prepare
set -euo pipefail

upstream=${1:?usage: compile_cuda.sh PATCHED_LLAMA_CPP}
native=$(cd "$(dirname "$0")/.." && pwd)
nvcc=${NVCC:-nvcc}
toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc")")")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

headers=()
if [[ ! -e $toolkit/include/cublas_v2.h ]]; then
    python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$work" nvidia-cublas
    python3 -m zipfile -e "$work"/nvidia_cublas-*.whl "$work/cublas"
    headers+=(-I "$(dirname "$(find "$work/cublas" -name cublas_v2.h | head -1)")")
fi
if [[ -d $toolkit/include/cccl ]]; then
    headers+=(-I "$toolkit/include/cccl")
fi

ours=(-fmad=false)  # as native/cmake/EagleSources.cmake
flags=(-std=c++17 -O2 -use_fast_math -extended-lambda --compiler-options -fPIC -DGGML_CUDA_PEER_MAX_BATCH_SIZE=128
    -DGGML_SCHED_MAX_COPIES=4 -I "$upstream/ggml/include" -I "$upstream/ggml/src" -I "$native/include"
    -I "$native/src/ggml-cuda" "${headers[@]}")
architectures=(${ARCHITECTURES:-75 80 86 89 90 120})
for arch in "${architectures[@]}"; do
    flags+=(-gencode "arch=compute_$arch,code=sm_$arch")
done

# Reads ptxas's report: which kernel for which architecture, then its stack frame and spills, then its registers.
summary='
    /Compiling entry function/ { arch = $NF; gsub(/[^a-z0-9_]/, "", arch) }
    / bytes spill stores/ { spilled[arch] += $5 }
    / Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used" && $(i + 1) > most[arch]) most[arch] = $(i + 1) }
    END {
        for (arch in most) {
            printf "  %s: at most %d registers, %d bytes spill\n", arch, most[arch], spilled[arch]
            bad += spilled[arch]
        }
        exit bad > 0
    }'
for source in "$native"/src/ggml-cuda/*.cu; do
    echo "$(basename "$source")"
    "$nvcc" "${flags[@]}" "${ours[@]}" -Xptxas -v -c "$source" -o "$work/object.o" 2>"$work/report" || {
        cat "$work/report"
        exit 1
    }
    awk "$summary" "$work/report" | sort
done
echo ggml-cuda.cu
"$nvcc" "${flags[@]}" -c "$upstream/ggml/src/ggml-cuda/ggml-cuda.cu" -o "$work/object.o"
