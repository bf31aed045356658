#!/usr/bin/env bash
# Prints the environment that the tests of devices need on the first Vulkan device, and nothing if they need none.
# Debian 12's software device (Mesa 22.3.6) damages the memory of its process (vulkan_destroyed_buffer.c): Mesa 25 of
# Debian's backports is downloaded with apt and unpacked into FOLDER. Needs no root, and nothing is installed.
#
#   native/tests/software_vulkan.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: software_vulkan.sh FOLDER}")
tests=$(cd "$(dirname "$0")" && pwd)
mesa=$folder/usr/lib/$(gcc -dumpmachine)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/first_buffer.comp" <<'SHADER'
#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer First { float x[]; };
void main() { x[0] = 1.0; }
SHADER
glslc "$work/first_buffer.comp" -mfmt=c -o "$work/first_buffer.spv.inc"
cc -I "$work" "$tests/vulkan_destroyed_buffer.c" -o "$work/program" -lvulkan
is_sound() { (env "$@" "$work/program") >&2; }

is_sound && exit
newer=("LD_LIBRARY_PATH=$mesa${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "VK_ICD_FILENAMES=$folder/lvp.json")
if [[ ! -e $folder/lvp.json ]]; then
    echo "this device damages memory: taking Mesa from Debian's backports" >&2
    "$tests/from_debian.sh" "$folder" bookworm-backports mesa-vulkan-drivers libdrm2 libdrm-amdgpu1
    sed "s#libvulkan_lvp.so#$mesa/&#" "$folder/usr/share/vulkan/icd.d/lvp_icd.json" >"$folder/lvp.json"
fi
is_sound "${newer[@]}"
echo "${newer[@]}"
