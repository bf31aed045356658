#!/usr/bin/env bash
# Prints the environment that the tests of devices need on the first Vulkan device, and nothing if they need none.
# Debian 12's software device (Mesa 22.3.6) uses destroyed buffers, and so damages the memory of its process
# (vulkan_destroyed_buffer.c): a layer that destroys none is built in FOLDER (vulkan_keep_buffers.c).
#
#   native/tests/software_vulkan.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: software_vulkan.sh FOLDER}")
tests=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
cat >"$folder/first_buffer.comp" <<'SHADER'
#version 450
layout(local_size_x = 1) in;
layout(binding = 0) buffer First { float x[]; };
void main() { x[0] = 1.0; }
SHADER
glslc "$folder/first_buffer.comp" -mfmt=c -o "$folder/first_buffer.spv.inc"
cc -I "$folder" "$tests/vulkan_destroyed_buffer.c" -o "$folder/destroyed_buffer" -lvulkan
is_sound() { (env "$@" "$folder/destroyed_buffer") >&2; }

is_sound 2>/dev/null && exit
cc -shared -fPIC "$tests/vulkan_keep_buffers.c" -o "$folder/libkeep_buffers.so"
cat >"$folder/keep_buffers.json" <<LAYER
{"file_format_version": "1.0.0",
 "layer": {"name": "VK_LAYER_EAGLE_keep_buffers", "type": "GLOBAL", "library_path": "$folder/libkeep_buffers.so",
           "api_version": "1.3.0", "implementation_version": "1", "description": "destroys no buffer"}}
LAYER
layer=("VK_LAYER_PATH=$folder" "VK_INSTANCE_LAYERS=VK_LAYER_EAGLE_keep_buffers")
is_sound "${layer[@]}"
echo "${layer[@]}"
