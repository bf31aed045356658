# Shortens compilation: several files in one unit, headers parsed once for a target, and less optimization where nothing is
# computed.

# Compiles the files of a target that match `pattern` together: small ones below large headers, which then take a fifth
# of the time.
function(eagle_unite target pattern)
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(others ${target} SOURCES)
    list(FILTER others EXCLUDE REGEX "${pattern}")
    foreach (file ${others})
        cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder})
        set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# Compiles files of a target with -O1, in two thirds of the time: they read or send data, check, or build a graph.
function(eagle_compile_fast target)
    list(TRANSFORM ARGN PREPEND ${LLAMA_CPP_DIR}/)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# Compiles all files of a target with -O1, except for these: they visit each token of a vocabulary, text or cache.
function(eagle_compile_fast_except target)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
endfunction()

# Parses these headers once for all files of a target, most of a small file's time. Files with options of their own are left
# out: GCC takes options from a precompiled header, and crashes if a file has another -O. ccache would not keep the objects.
function(eagle_parse_once target)
    if (CMAKE_CXX_COMPILER_LAUNCHER MATCHES ccache)
        return()
    endif()
    get_target_property(folder ${target} SOURCE_DIR)
    get_target_property(files ${target} SOURCES)
    foreach (file ${files})
        cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder})
        get_property(options SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS)
        if (options)
            set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
        endif()
    endforeach()
    target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

eagle_compile_fast(ggml-base ggml/src/ggml-backend-meta.cpp ggml/src/ggml-opt.cpp ggml/src/gguf.cpp)
if (GGML_RPC)
    eagle_compile_fast(ggml-rpc ggml/src/ggml-rpc/ggml-rpc.cpp)
    eagle_compile_fast(ggml-rpc-server tools/rpc/rpc-server.cpp)
endif()
set(src ${LLAMA_CPP_DIR}/src)
set(folded ${CMAKE_BINARY_DIR}/generated/folded/llama)
eagle_compile_fast_except(llama ${src}/llama-context.cpp ${src}/llama-grammar.cpp ${src}/llama-graph.cpp ${src}/llama-kv-cache.cpp
    ${src}/llama-sampler.cpp ${src}/llama-vocab.cpp ${src}/unicode.cpp ${folded}_choice.cpp ${folded}_grammar.cpp
    ${folded}_policy.cpp ${folded}_vocabulary.cpp ${EAGLE_NATIVE}/src/llama/draft/small/eagle_small_head.cpp)
if (TARGET mtmd)
    eagle_unite(mtmd "models/.*[.]cpp$")
    eagle_compile_fast_except(mtmd ${LLAMA_CPP_DIR}/tools/mtmd/mtmd-audio.cpp ${LLAMA_CPP_DIR}/tools/mtmd/mtmd-image.cpp)
endif()
if (TARGET llama-common)
    eagle_unite(llama-common
        "(parsers/.*|jinja/[^v].*|chat-.*|peg-parser|debug|download|fit|hf-cache|preset)[.]cpp$")
endif()
if (LLAMA_EAGLE_SERVER)
    eagle_unite(server-context "server-(mcp|queue|stream|tools)[.]cpp$")

    eagle_compile_fast_except(llama-common ${LLAMA_CPP_DIR}/common/sampling.cpp)
    foreach (target cpp-httplib server-context llama-server-impl llama-imatrix)
        eagle_compile_fast_except(${target})
    endforeach()
endif()

eagle_parse_once(llama ${LLAMA_CPP_DIR}/src/llama-model.h)
