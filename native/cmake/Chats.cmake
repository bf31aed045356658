# libllama-common without the server: only the sources of chat templates, their parsers and JSON schemas. Functions that
# nobody calls are not linked, because they refer to sources that are left out.
set(folder ${LLAMA_CPP_DIR}/common)
file(GLOB sources ${folder}/chat*.cpp ${folder}/json*.cpp ${folder}/jinja/*.cpp ${folder}/parsers/*.cpp)
add_library(llama-common SHARED ${sources} ${folder}/common.cpp ${folder}/log.cpp ${folder}/peg-parser.cpp
    ${folder}/trie.cpp ${folder}/unicode.cpp)
target_include_directories(llama-common PRIVATE ${folder} ${LLAMA_CPP_DIR}/vendor)
target_compile_features(llama-common PRIVATE cxx_std_17)
target_compile_options(llama-common PRIVATE -O1 -ffunction-sections -fdata-sections)  # -O1 compiles faster
target_link_options(llama-common PRIVATE $<IF:$<PLATFORM_ID:Darwin>,-Wl$<COMMA>-dead_strip,-Wl$<COMMA>--gc-sections>)
target_link_libraries(llama-common PRIVATE llama)
set_target_properties(llama-common PROPERTIES CXX_VISIBILITY_PRESET hidden)
list(APPEND EAGLE_LIBRARIES llama-common)
