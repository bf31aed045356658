#!/bin/sh
# Builds the kernel tests for aarch64 and runs them in an emulator. This tests exactness, not speed.
#
#     native/tests/emulate_arm.sh [ARCH [CPU]]        e.g. armv8-a cortex-a53, armv8.2-a+dotprod+i8mm max
#
# ARCH is GGML_CPU_ARM_ARCH, CPU qemu's. Needs Debian's g++-aarch64-linux-gnu and qemu-user; takes about ten minutes.
set -eu
arch=${1:-armv8.2-a+dotprod}
cpu=${2:-max}
build=build/$arch
tests="test_eagle_mul_mat test_eagle_flash_attn test_gdn_replay test_ssm_replay"

cd "$(dirname "$0")/../.."
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAMA_EAGLE_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CPU_ARM_ARCH="$arch"
# shellcheck disable=SC2086
cmake --build "$build" --target $tests
for test in $tests; do
    echo "$test, $arch on $cpu"
    qemu-aarch64 -cpu "$cpu" -L /usr/aarch64-linux-gnu "$build/bin/$test"
done
