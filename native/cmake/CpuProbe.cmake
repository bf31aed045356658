# With -march=native the compiler trusts CPUID, but virtual machines sometimes report instructions that fault. So CMake runs a
# small program for each instruction set and disables the sets that do not work.
if (NOT DEFINED GGML_NATIVE)
    set(GGML_NATIVE ON)
endif()
if (CMAKE_CROSSCOMPILING OR NOT GGML_NATIVE OR MSVC OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    return()
endif()

set(probes
    "AVX2:-mno-avx2 -mno-avxvnni -mno-avx512f"
    "AVX_VNNI:-mno-avxvnni"
    "AVX512:-mno-avx512f"
    "AVX512_VBMI:-mno-avx512vbmi"
    "AVX512_VNNI:-mno-avx512vnni"
    "AVX512_BF16:-mno-avx512bf16"
    "AMX_INT8:-mno-amx-tile -mno-amx-int8 -mno-amx-bf16")

set(EAGLE_CPU_DISABLED "")
foreach (probe ${probes})
    string(REGEX MATCH "^([^:]+):(.*)$" _ ${probe})
    set(name ${CMAKE_MATCH_1})
    separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_2}")
    if (NOT DEFINED EAGLE_CPU_${name}_RUNS)
        try_run(EAGLE_CPU_${name}_RUNS compiled ${CMAKE_BINARY_DIR}/probe/${name} ${CMAKE_CURRENT_LIST_DIR}/cpu_probe.c
            COMPILE_DEFINITIONS -march=native -DPROBE_${name})
    endif()
    if (NOT EAGLE_CPU_${name}_RUNS EQUAL 0)
        message(WARNING "The CPU announces ${name} but cannot execute it: building without (${CMAKE_MATCH_2})")
        list(APPEND EAGLE_CPU_DISABLED ${name})
        add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${flags}>")
    endif()
endforeach()
