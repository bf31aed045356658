# Uses ccache if present, unless the caller has chosen a launcher.
find_program(EAGLE_CCACHE ccache)
foreach (lang C CXX CUDA)
    if (EAGLE_CCACHE AND NOT DEFINED CMAKE_${lang}_COMPILER_LAUNCHER)
        set(CMAKE_${lang}_COMPILER_LAUNCHER ${EAGLE_CCACHE})
    endif()
endforeach()
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # ggml would add it a second time
