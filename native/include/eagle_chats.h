// eagle_chats.h: JSON schemas, tool calls and answers, by the code of llama-server. Part of the C interface of
// libllama-common.
// Requests and results are JSON texts (null-terminated UTF-8).
//
// Functions return an eagle_status: EAGLE_ERR_ARGUMENT for an invalid request or chat template. They set *result to the
// result or, if they fail, to a sentence with the reason; it is valid until the thread's next call.

#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "eagle.h"

#ifdef __cplusplus
extern "C" {
#endif

// Converts a JSON schema that bindings/llama_eagle/sessions/schemas has reduced to what llama.cpp's converter knows;
// the limits of schemas are there. Result: the grammar.
LLAMA_API int32_t eagle_schema_grammar(const char * schema, const char ** result);

struct eagle_reply;  // parser of an answer

// Makes the parser of the answer to a request for a chat. Its keys have the names of OpenAI's and llama-server's APIs:
//   template (in Jinja), bos, eos, messages, tools, tool_choice, parallel_tool_calls, json_schema,
//   chat_template_kwargs, enable_thinking, reasoning_format, continue_final_message, echo, force_pure_content;
//   prompt_end: as for eagle_reply_follow, which then needs no call;
//   loose_tools: tools whose parameters have any type, for answers that do not have the types of `tools`;
//   streams_calls: calls are new piece by piece.
// Result: {"stops", "settings"}. A stop is a text that ends the answer. settings: keys of llama-server's /completion.
// Their preserved_tokens are texts that belong to the template's format: the answer must contain them, also those of
// them that are control tokens. A call that is required but that the template cannot force is an invalid request.
LLAMA_API int32_t eagle_reply_new(const char * request, struct eagle_reply ** reply, const char ** result);

// Chooses the form of the answer, with or without thoughts, by the last characters of the prompt.
LLAMA_API int32_t eagle_reply_follow(struct eagle_reply * reply, const char * prompt_end, const char ** result);

// Adds `size` bytes of the answer, complete characters. Result: what is new, {"reasoning_content", "content",
// "tool_calls", "is_loose"}: two texts, if there are any, and a list of {"name", "arguments"}. A call is new when the
// next one has begun or the answer ends; arguments that are no JSON have been cut. is_loose: arguments do not have the
// types of their schemas, and may be texts. If calls are new piece by piece, the list is one of {"index", "arguments"};
// the first piece of a call has its "name", and its "id" if the model wrote one; what follows calls at the end of the
// answer is in "rest", an object of the same form.
LLAMA_API int32_t eagle_reply_add(struct eagle_reply * reply, const char * text, size_t size, bool is_last,
                                  const char ** result);
LLAMA_API void eagle_reply_free(struct eagle_reply * reply);

#ifdef __cplusplus
}
#endif
