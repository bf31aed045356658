# Programs of llama.cpp, next to the libraries: its server with its page, and llama-imatrix.
include(Page)

function(eagle_add_programs)
    set(PROJECT_SOURCE_DIR ${LLAMA_CPP_DIR})  # the root folder that these folders expect
    set(LLAMA_BUILD_UI OFF)  # Page.cmake builds it; upstream's script copies it from tools/ui/dist
    set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
    find_package(Threads REQUIRED)
    add_subdirectory(${LLAMA_CPP_DIR}/tools/ui ${CMAKE_BINARY_DIR}/llama.cpp/tools/ui EXCLUDE_FROM_ALL)
    add_subdirectory(${LLAMA_CPP_DIR}/tools/server ${CMAKE_BINARY_DIR}/llama.cpp/tools/server EXCLUDE_FROM_ALL)
    add_subdirectory(${LLAMA_CPP_DIR}/tools/imatrix ${CMAKE_BINARY_DIR}/llama.cpp/tools/imatrix EXCLUDE_FROM_ALL)
endfunction()

eagle_add_programs()
foreach (target llama-server llama-server-impl llama-imatrix)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL OFF)
endforeach()
if (TARGET eagle-page)
    add_dependencies(llama-ui-assets eagle-page)
endif()
