#!/usr/bin/env bash
# Prints the CMake option that names Vulkan headers which llama.cpp can use, and nothing if those of the system will do.
# Debian 12 has them too old (no vk::LayerSettingEXT): Debian 13's libvulkan-dev is unpacked into FOLDER.
#
#   native/tests/vulkan_headers.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: vulkan_headers.sh FOLDER}")
will_do() { grep -qs LayerSettingEXT "$1/vulkan/vulkan_structs.hpp"; }

will_do /usr/include && exit
command -v apt-get >/dev/null || exit 0  # CMake knows where else to look, and says what is missing
will_do "$folder/usr/include" || "$(dirname "$0")/from_debian.sh" "$folder" trixie libvulkan-dev
echo "-DVulkan_INCLUDE_DIR=$folder/usr/include"
