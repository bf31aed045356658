# Downloads llama.cpp (native/UPSTREAM) and applies native/patches/series (upstream.py).
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(EAGLE_NATIVE ${CMAKE_CURRENT_LIST_DIR}/..)
set(LLAMA_CPP_DIR ${CMAKE_BINARY_DIR}/upstream)
if (LLAMA_CPP_SOURCE_DIR)
    set(ENV{LLAMA_CPP_SOURCE_DIR} ${LLAMA_CPP_SOURCE_DIR})
endif()

execute_process(
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/upstream.py prepare ${LLAMA_CPP_DIR}
    RESULT_VARIABLE failed)
if (failed)
    message(FATAL_ERROR "llama.cpp could not be prepared: see the error above")
endif()

execute_process(
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/upstream.py hash
    OUTPUT_VARIABLE EAGLE_PATCH_HASH OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

file(STRINGS ${EAGLE_NATIVE}/UPSTREAM upstream REGEX "^[a-z0-9_]+=")
foreach (line ${upstream})
    string(REGEX MATCH "^([^=]+)=(.*)$" _ ${line})
    set(pin_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()
set(EAGLE_UPSTREAM_COMMIT ${pin_llama_cpp_commit})
set(EAGLE_UPSTREAM_VERSION ${pin_version})

# A changed pin or patch must trigger a reconfigure.
file(GLOB EAGLE_PATCHES CONFIGURE_DEPENDS ${EAGLE_NATIVE}/patches/*)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${EAGLE_NATIVE}/UPSTREAM ${CMAKE_CURRENT_LIST_DIR}/upstream.py ${EAGLE_PATCHES})
