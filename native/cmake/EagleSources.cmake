# Joins native/src/<target> to llama.cpp's targets and installs the libraries as the package's lib/ folder.

file(STRINGS ${EAGLE_NATIVE}/include/eagle.h abi REGEX "#define EAGLE_ABI_VERSION")
string(REGEX MATCH "[0-9]+$" EAGLE_ABI_VERSION "${abi}")
set(EAGLE_RPC_PROTOCOL "")
if (GGML_RPC)
    file(STRINGS ${LLAMA_CPP_DIR}/ggml/include/ggml-rpc.h versions REGEX "#define RPC_PROTO_(MAJOR|MINOR)_VERSION")
    string(REGEX REPLACE "[^0-9;]" "" versions "${versions}")
    string(JOIN "." EAGLE_RPC_PROTOCOL ${versions})
endif()
configure_file(${EAGLE_NATIVE}/cmake/eagle_build_info.h.in ${CMAKE_BINARY_DIR}/generated/eagle_build_info.h @ONLY)
configure_file(${EAGLE_NATIVE}/cmake/build-info.json.in ${CMAKE_BINARY_DIR}/bin/build-info.json @ONLY)

# Returns all library targets below a folder of the build.
function(eagle_library_targets folder out)
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    foreach (subfolder ${subfolders})
        eagle_library_targets(${subfolder} more)
        list(APPEND targets ${more})
    endforeach()
    set(libraries "")
    foreach (target ${targets})
        get_target_property(type ${target} TYPE)
        if (type MATCHES "^(SHARED|MODULE)_LIBRARY$")
            list(APPEND libraries ${target})
        endif()
    endforeach()
    set(${out} ${libraries} PARENT_SCOPE)
endfunction()

# Lets a target of llama.cpp include the headers below native/src/<folder> by their names, without a folder.
function(eagle_include target folder)
    file(GLOB_RECURSE rooms CONFIGURE_DEPENDS LIST_DIRECTORIES true ${EAGLE_NATIVE}/src/${folder}/*)
    list(FILTER rooms EXCLUDE REGEX "[.][a-z]+$")
    list(APPEND rooms ${EAGLE_NATIVE}/src/${folder})
    target_include_directories(${target} PRIVATE ${EAGLE_NATIVE}/include ${rooms} ${CMAKE_BINARY_DIR}/generated)
    set(EAGLE_SOURCE_FOLDERS ${EAGLE_SOURCE_FOLDERS} ${rooms} PARENT_SCOPE)  # for the native tests
endfunction()

# Also adds the sources below native/src/<folder> to a target of llama.cpp.
function(eagle_join target folder)
    eagle_include(${target} ${folder})
    set(EAGLE_SOURCE_FOLDERS ${EAGLE_SOURCE_FOLDERS} PARENT_SCOPE)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${EAGLE_NATIVE}/src/${folder}/*)
    list(FILTER sources INCLUDE REGEX "[.](c|cpp|cu)$")
    if (sources)
        target_sources(${target} PRIVATE ${sources})
        # llama is a unity build; our files are compiled separately.
        set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
        # The compiler could contract multiply-adds differently in each instance of a template.
        set(cuda_sources ${sources})
        list(FILTER cuda_sources INCLUDE REGEX "[.]cu$")
        set_property(SOURCE ${cuda_sources} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
        set(unfused_sources ${sources})
        list(FILTER unfused_sources INCLUDE REGEX "eagle_(conv|ssm)_cpu.cpp$")
        set_property(SOURCE ${unfused_sources} TARGET_DIRECTORY ${target}
            APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
    endif()
endfunction()

# Compiles the sources in each of these folders of native/src together: small files below large headers.
function(eagle_fold target)
    foreach (folder ${ARGN})
        file(GLOB sources CONFIGURE_DEPENDS ${EAGLE_NATIVE}/src/${folder}/*.cpp)
        list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE includes)
        list(JOIN includes "\n" includes)
        string(REPLACE "/" "_" name ${folder})
        file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/folded/${name}.cpp CONTENT "@includes@\n" @ONLY)
        set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES HEADER_FILE_ONLY ON)
        target_sources(${target} PRIVATE ${CMAKE_BINARY_DIR}/generated/folded/${name}.cpp)
        set_source_files_properties(${CMAKE_BINARY_DIR}/generated/folded/${name}.cpp TARGET_DIRECTORY ${target}
            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
endfunction()

eagle_library_targets(${LLAMA_CPP_DIR} libraries)
list(APPEND EAGLE_LIBRARIES ${libraries})
if (LLAMA_EAGLE_SERVER)
    list(APPEND EAGLE_LIBRARIES llama-server-impl)
    eagle_include(server-context llama-common)
    eagle_include(llama-server-impl llama-common)
    eagle_include(llama-imatrix llama-imatrix)
    target_include_directories(llama-imatrix PRIVATE ${LLAMA_CPP_DIR}/src)  # llama-ext.h
    install(TARGETS llama-server llama-imatrix COMPONENT llama_eagle RUNTIME DESTINATION llama_eagle/lib)
endif()
if (GGML_RPC)
    add_subdirectory(${LLAMA_CPP_DIR}/tools/rpc ${CMAKE_BINARY_DIR}/llama.cpp/tools/rpc)
    install(TARGETS ggml-rpc-server COMPONENT llama_eagle RUNTIME DESTINATION llama_eagle/lib)
endif()
foreach (target ${EAGLE_LIBRARIES})
    if (target MATCHES "^ggml-cpu")  # several with GGML_CPU_ALL_VARIANTS
        eagle_join(${target} ggml-cpu)
        target_compile_definitions(${target} PRIVATE EAGLE_CPU_LIBRARY="${target}")
        if (WIN32)
            target_link_libraries(${target} PRIVATE synchronization)  # WaitOnAddress
        endif()
    elseif (target MATCHES "^(llama|ggml|ggml-cuda|ggml-rpc)$")
        eagle_join(${target} ${target})
        if (target STREQUAL "llama")
            eagle_fold(llama llama/choice llama/draft/engine llama/draft/mtp llama/grammar llama/library llama/policy llama/target
                llama/vocabulary llama/weights)
        endif()
        target_include_directories(${target} PRIVATE ${LLAMA_CPP_DIR}/ggml/src)
    elseif (target STREQUAL "llama-common")
        eagle_join(${target} llama-common)
    elseif (target STREQUAL "mtmd")
        eagle_include(${target} llama-common)
    elseif (target MATCHES "^ggml-(hip|musa)$")
        eagle_include(${target} ggml-cuda)  # they compile ggml-cuda's files, without our kernels
    endif()
    # VERSION and SOVERSION would put three copies of each library into a wheel, because wheels have no symbolic links.
    set_property(TARGET ${target} PROPERTY VERSION)
    set_property(TARGET ${target} PROPERTY SOVERSION)
    if (MINGW)
        set_property(TARGET ${target} PROPERTY PREFIX "")  # as ggml looks for its backends on Windows
        if (target MATCHES "sapphirerapids$")
            # GCC's AMX intrinsics take strides as `long`, which has 32 bits on Windows; the result does not assemble.
            target_compile_options(${target} PRIVATE -U__AMX_INT8__)
        endif()
    endif()
    set_property(TARGET ${target} PROPERTY PUBLIC_HEADER)
    set_property(TARGET ${target} PROPERTY PRIVATE_HEADER)
    install(TARGETS ${target} COMPONENT llama_eagle
        LIBRARY DESTINATION llama_eagle/lib RUNTIME DESTINATION llama_eagle/lib)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/bin/build-info.json DESTINATION llama_eagle/lib COMPONENT llama_eagle)

# llama.cpp's converter runs in a child process for the families that have no table in convert/targets.
install(DIRECTORY ${LLAMA_CPP_DIR}/conversion ${LLAMA_CPP_DIR}/gguf-py/gguf
    DESTINATION llama_eagle/lib/converter COMPONENT llama_eagle
    FILES_MATCHING PATTERN "*.py" PATTERN "scripts" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY ${LLAMA_CPP_DIR}/models/templates
    DESTINATION llama_eagle/lib/converter/models COMPONENT llama_eagle)

# The licences of llama.cpp and of the code in it must be with its libraries.
file(GLOB notices RELATIVE ${LLAMA_CPP_DIR} ${LLAMA_CPP_DIR}/LICENSE* ${LLAMA_CPP_DIR}/licenses/*
    ${LLAMA_CPP_DIR}/vendor/*/LICENSE* ${LLAMA_CPP_DIR}/vendor/*/*/LICENSE*)
foreach (notice ${notices})
    cmake_path(GET notice PARENT_PATH folder)
    install(FILES ${LLAMA_CPP_DIR}/${notice} DESTINATION llama_eagle/lib/licenses/${folder} COMPONENT llama_eagle)
endforeach()
