#!/usr/bin/env bash
# Prints the CMake option that names Vulkan headers which llama.cpp can use, and nothing if those of the system will do.
# Debian 12 has them too old (no vk::LayerSettingEXT): Debian 13's libvulkan-dev is downloaded with apt and unpacked
# into FOLDER. Needs no root, and nothing is installed.
#
#   native/tests/vulkan_headers.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: vulkan_headers.sh FOLDER}")
will_do() { grep -qs LayerSettingEXT "$1/vulkan/vulkan_structs.hpp"; }

will_do /usr/include && exit
command -v apt-get >/dev/null || exit 0  # CMake knows where else to look, and says what is missing
if ! will_do "$folder/usr/include"; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work"/{cache/archives,lists}/partial
    archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -vm1 security)  # the one that this system uses
    cat >"$work/debian.sources" <<SOURCES
Types: deb
URIs: $archive
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/debian.sources" -o Dir::Etc::SourceParts=- -o "Dir::Cache=$work/cache"
        -o "Dir::State::Lists=$work/lists" -o Dir::State::Status=/dev/null -o "APT::Architectures=$(dpkg --print-architecture)"
        -o "APT::Sandbox::User=$(id -un)")
    cd "$work"
    "${apt[@]}" update >&2
    "${apt[@]}" download libvulkan-dev >&2
    mkdir -p "$folder"
    dpkg -x libvulkan-dev_*.deb "$folder"
fi
echo "-DVulkan_INCLUDE_DIR=$folder/usr/include"
