# LLAMA_EAGLE_PORTABLE builds libraries for other machines: ggml's CPU library is built for each generation of CPUs, and the
# best one that works is chosen at run time.
option(LLAMA_EAGLE_PORTABLE "Build for other machines: all CPU variants, chosen at run time" OFF)
if (NOT LLAMA_EAGLE_PORTABLE)
    return()
endif()
set(GGML_NATIVE OFF CACHE BOOL "" FORCE)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
set(GGML_CPU_ALL_VARIANTS ON CACHE BOOL "" FORCE)

if (MINGW)  # its runtime is installed next to the libraries
    foreach (name libgcc_s_seh-1 libgomp-1 libstdc++-6 libwinpthread-1)
        execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${name}.dll
            OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
        file(COPY ${runtime} DESTINATION ${CMAKE_BINARY_DIR}/bin)
        install(FILES ${runtime} DESTINATION llama_eagle/lib COMPONENT llama_eagle)
    endforeach()
endif()
