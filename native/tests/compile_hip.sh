#!/usr/bin/env bash
# Compiles our parts of a ROCm build for AMD GPUs: llama.cpp's dispatch with the call sites of our patches, and also our CUDA
# sources, which such a build excludes. Needs clang with HIP headers and device libraries, but no GPU and no ROCm. On Debian
# 12: hipcc, clang-19, clang-tools-19 and lld-19 (clang 15 of hipcc has no bf16 for gfx90a), and these packages of Debian 13,
# unpacked by
#   native/tests/from_debian.sh FOLDER trixie rocm-device-libs-17 libamdhip64-dev libhipblas-dev librocblas-dev
#
#   native/tests/compile_hip.sh PATCHED_LLAMA_CPP [FOLDER]
set -euo pipefail

upstream=${1:?usage: compile_hip.sh PATCHED_LLAMA_CPP [FOLDER]}
folder=${2:-}
native=$(cd "$(dirname "$0")/.." && pwd)
newest() { { find "${@:2}" -name "$1" 2>/dev/null || true; } | sort | tail -1; }
clang=${HIP_CLANG:-$(newest clang++ /opt/rocm/llvm/bin /usr/lib/llvm-*/bin)}
libraries=${HIP_DEVICE_LIB_PATH:-$(dirname "$(newest ockl.bc ${folder:-/opt/rocm /usr/lib})")}
rocm=${ROCM_PATH:-$([[ -e /opt/rocm ]] && echo /opt/rocm || echo /usr)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# HIP 6 gives the last argument a default, and llama.cpp relies on it.
cat >"$work/hip_6.h" <<'SHIM'
#include <hip/hip_runtime.h>
#if HIP_VERSION_MAJOR < 6
static inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event) {
    return hipStreamWaitEvent(stream, event, 0);
}
#endif
SHIM

flags=(-x hip -std=c++17 -O2 -w -fPIC -c -o "$work/object.o" "--rocm-path=$rocm" "--rocm-device-lib-path=$libraries" -isystem "$folder/usr/include"
    -include "$work/hip_6.h" -D__HIP_PLATFORM_AMD__ -DGGML_USE_HIP -DGGML_CUDA_PEER_MAX_BATCH_SIZE=128
    -DGGML_SCHED_MAX_COPIES=4 -I "$upstream/ggml/include" -I "$upstream/ggml/src" -I "$native/include"
    -I "$native/src/ggml-cuda")
for arch in ${ARCHITECTURES:-gfx906 gfx90a gfx1030 gfx1100}; do  # 64 threads a warp, 64, 32, 32
    for source in "$native"/src/ggml-cuda/*.cu; do
        "$clang" "${flags[@]}" "--offload-arch=$arch" -ffp-contract=off -DEAGLE_HIP_KERNELS "$source"
    done
    echo "our sources compile for $arch"
done
"$clang" "${flags[@]}" --offload-arch=gfx1030 "$upstream/ggml/src/ggml-cuda/ggml-cuda.cu"
echo "llama.cpp's dispatch compiles with our patches"
