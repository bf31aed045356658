# Uses ccache if present and able to write its cache, unless the caller has chosen a launcher or disabled it: headers are then
# precompiled (CompileTime.cmake). Packagers' builds often have no home.
find_program(EAGLE_CCACHE ccache)
set(ccache_failed "$ENV{CCACHE_DISABLE}")
if (EAGLE_CCACHE AND NOT ccache_failed)
    execute_process(COMMAND ${EAGLE_CCACHE} ${CMAKE_C_COMPILER} -c ${CMAKE_CURRENT_LIST_DIR}/cpu_probe.c
            -o ${CMAKE_BINARY_DIR}/ccache-probe.o
        RESULT_VARIABLE ccache_failed OUTPUT_QUIET ERROR_QUIET)
endif()
foreach (lang C CXX CUDA)
    if (EAGLE_CCACHE AND NOT ccache_failed AND NOT DEFINED CMAKE_${lang}_COMPILER_LAUNCHER)
        set(CMAKE_${lang}_COMPILER_LAUNCHER ${EAGLE_CCACHE})
    endif()
endforeach()
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # ggml would add it a second time
