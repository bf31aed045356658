#!/usr/bin/env bash
# gguf 0.19.0 (PyPI) and the gguf-py in llama-cpp-python 0.3.36's source distribution have the same version number, but
# not the same contents: the second knows architectures that the first does not. llama.cpp's converter of that source
# needs the second: it names 27 architectures more. Seen on 2026-11-29: the lines at the end.
. "$(dirname "$0")/common.sh"
install gguf==0.19.0
source=$(llama_cpp_source)
names='from importlib import import_module as i; c = i("gguf.constants"); print(*sorted(c.MODEL_ARCH_NAMES.values()), sep="\n")'
"$work/env/bin/python" -c "$names" > "$work/pypi"
PYTHONPATH="$source/gguf-py" "$work/env/bin/python" -c "$names" > "$work/sdist-names"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/gguf-py/pyproject.toml")
echo "only in the source distribution: $(comm -13 "$work/pypi" "$work/sdist-names" | tr '\n' ' ')"
expect "version $version, $(wc -l < "$work/pypi") and $(wc -l < "$work/sdist-names") architectures" \
    "version 0.19.0, 126 and 153 architectures"
