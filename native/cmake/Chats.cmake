# libllama-common without the server: only the sources of JSON schemas. Functions that nobody calls are not linked,
# because they refer to sources that are left out.
set(folder ${LLAMA_CPP_DIR}/common)
add_library(llama-common SHARED ${folder}/json.cpp ${folder}/json-schema.cpp ${folder}/json-schema-to-grammar.cpp
    ${folder}/common.cpp ${folder}/log.cpp ${folder}/trie.cpp ${folder}/unicode.cpp)
target_include_directories(llama-common PRIVATE ${folder} ${LLAMA_CPP_DIR}/vendor)
target_compile_features(llama-common PRIVATE cxx_std_17)
target_compile_options(llama-common PRIVATE -O1 -ffunction-sections -fdata-sections)  # -O1 compiles faster
target_link_options(llama-common PRIVATE $<IF:$<PLATFORM_ID:Darwin>,-Wl$<COMMA>-dead_strip,-Wl$<COMMA>--gc-sections>)
target_link_libraries(llama-common PRIVATE llama)
set_target_properties(llama-common PROPERTIES CXX_VISIBILITY_PRESET hidden)
list(APPEND EAGLE_LIBRARIES llama-common)
