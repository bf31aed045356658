#!/usr/bin/env bash
# Unpacks packages of a Debian suite into FOLDER, from the archive that this system uses. Installs nothing and needs no root.
#
#   native/tests/from_debian.sh FOLDER SUITE PACKAGE...
set -euo pipefail

folder=$(realpath -m "${1:?usage: from_debian.sh FOLDER SUITE PACKAGE...}") suite=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{cache/archives,lists}/partial "$folder"
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -vm1 security)
cat >"$work/debian.sources" <<SOURCES
Types: deb
URIs: $archive
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/debian.sources" -o Dir::Etc::SourceParts=- -o "Dir::Cache=$work/cache"
    -o "Dir::State::Lists=$work/lists" -o Dir::State::Status=/dev/null -o "APT::Architectures=$(dpkg --print-architecture)"
    -o "APT::Sandbox::User=$(id -un)")
cd "$work"
"${apt[@]}" update >&2
"${apt[@]}" download "$@" >&2
for package in *.deb; do
    dpkg -x "$package" "$folder"
done
