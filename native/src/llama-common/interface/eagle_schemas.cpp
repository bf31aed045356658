// The C interface of JSON schemas (eagle_chats.h).
#include "eagle_chats.h"
#include "eagle_result.h"
#include "json-schema-to-grammar.h"

int32_t eagle_schema_grammar(const char * schema, const char ** result) {
    return eagle_answered(result, [&] { return json_schema_to_grammar(common_json::parse(schema), true); });
}
