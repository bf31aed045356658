# Builds the page in the folder UI with NPM, and writes into the file INFO whether there is one.
#
#   cmake -DNPM=npm -DUI=llama.cpp/tools/ui -DWORK=folder -DINFO=build-info.json -P page_build.cmake

function(page_run)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env LLAMA_UI_OUT_DIR=${WORK}/dist LLAMA_UI_VERSION=b0
            LLAMA_BUILD_NUMBER=0 ${NPM} ${ARGN}
        WORKING_DIRECTORY ${WORK}/source TIMEOUT 1800 RESULT_VARIABLE failed OUTPUT_FILE ${WORK}/log ERROR_FILE ${WORK}/log)
    set(page_failed ${failed} PARENT_SCOPE)
endfunction()

# Builds into ${WORK}/dist, unless it was built from the same sources.
function(page_build)
    file(GLOB_RECURSE sources ${UI}/*)
    set(sum "")
    foreach (source ${sources})
        file(SHA256 ${source} one)
        string(APPEND sum ${one})
    endforeach()
    string(SHA256 sum "${sum}")
    if (EXISTS ${WORK}/failed OR (EXISTS ${WORK}/${sum} AND EXISTS ${WORK}/dist/index.html))
        return()
    endif()
    file(REMOVE_RECURSE ${WORK})
    file(COPY ${UI}/ DESTINATION ${WORK}/source)
    page_run(ci --no-audit --no-fund)
    if (NOT page_failed)
        page_run(run build)
    endif()
    if (page_failed OR NOT EXISTS ${WORK}/dist/index.html)
        file(REMOVE_RECURSE ${WORK}/dist)
        file(TOUCH ${WORK}/failed)  # until CMake configures again
        message(WARNING "The server's page could not be built (${WORK}/log says why): it gets a plain one.")
        return()
    endif()
    file(REMOVE_RECURSE ${WORK}/source)
    file(TOUCH ${WORK}/${sum})
endfunction()

file(REMOVE_RECURSE ${UI}/dist)
page_build()
set(has_page false)
if (EXISTS ${WORK}/dist/index.html)
    set(has_page true)
    file(COPY ${WORK}/dist/ DESTINATION ${UI}/dist)
    file(READ ${CMAKE_CURRENT_LIST_DIR}/page_tools.html tools)
    file(READ ${UI}/dist/index.html index)
    string(REPLACE "<head>" "<head>\n${tools}" index "${index}")
    file(WRITE ${UI}/dist/index.html "${index}")
endif()
file(READ ${INFO} info)
string(REGEX REPLACE "\"page\": [a-z]+" "\"page\": ${has_page}" info "${info}")
file(CONFIGURE OUTPUT ${INFO} CONTENT "${info}" @ONLY)  # writes a change alone
