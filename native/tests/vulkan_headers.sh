#!/usr/bin/env bash
# Prints a CMake option for Vulkan headers that llama.cpp can use, and nothing if the system's headers are sufficient. Those of
# Debian 12 are too old (no vk::LayerSettingEXT), so the script unpacks Debian 13's libvulkan-dev into FOLDER.
#
#   native/tests/vulkan_headers.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: vulkan_headers.sh FOLDER}")
suffices() { grep -qs LayerSettingEXT "$1/vulkan/vulkan_structs.hpp"; }

suffices /usr/include && exit
command -v apt-get >/dev/null || exit 0  # CMake searches elsewhere and reports what is missing
suffices "$folder/usr/include" || "$(dirname "$0")/from_debian.sh" "$folder" trixie libvulkan-dev
echo "-DVulkan_INCLUDE_DIR=$folder/usr/include"
