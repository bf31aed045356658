# Sourced by the scripts of this folder: a temporary folder, pinned packages in it, and the verdict.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}

# install PACKAGE==VERSION...: into a virtual environment of this run
install() {
    [ -x "$work/env/bin/python" ] || "$python" -m venv "$work/env"
    "$work/env/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# llama_cpp_source: print the folder of llama.cpp in llama-cpp-python 0.3.36's source distribution (commit 0c1e57098)
llama_cpp_source() {
    [ -x "$work/env/bin/python" ] || "$python" -m venv "$work/env"
    "$work/env/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest "$work/sdist" llama-cpp-python==0.3.36 >&2
    tar -xzf "$work"/sdist/llama_cpp_python-0.3.36.tar.gz -C "$work/sdist"
    echo "$work/sdist/llama_cpp_python-0.3.36/vendor/llama.cpp"
}

# expect SEEN EXPECTED: end with 1 unless they are equal
expect() {
    echo "seen:     $1"
    echo "expected: $2"
    [ "$1" = "$2" ] || { echo "CHANGED: the finding no longer holds as stated"; exit 1; }
    echo "still so"
}
