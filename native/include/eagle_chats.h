// eagle_chats.h: JSON schemas and tool calls, by the code of llama-server. Part of the C interface of libllama-common.
// Requests and results are JSON texts (null-terminated UTF-8).
//
// Functions return an eagle_status: EAGLE_ERR_ARGUMENT for an invalid request. They set *result to the result or, if
// they fail, to a sentence with the reason; it is valid until the thread's next call.

#pragma once

#include <stddef.h>

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// Converts a JSON schema: {"grammar", "unenforced"}. unenforced: keys that the grammar does not enforce.
LLAMA_API int32_t eagle_schema_grammar(const char * schema, const char ** result);

// Returns the same for a call of one of several functions ([{"name", "parameters"}]): {"name", "arguments"} as JSON.
LLAMA_API int32_t eagle_calls_grammar(const char * functions, const char ** result);

#ifdef __cplusplus
}
#endif
