// Parts of tools' results that this server does not read: a text in their place says so. No user can take them out of a
// conversation, and a client sends it again with each request.
#pragma once

#include <cstdlib>
#include <string>

#include "eagle_chat.h"
#include "json.h"

inline common_json eagle_text_part(const std::string & text) {
    common_json part = common_json{{"type", "text"}};
    part["text"] = text;
    return part;
}

inline common_json eagle_unread_part(const std::string & what) {
    return eagle_text_part("[Here is " + what + " that this model cannot read.]");
}

// Returns true if a picture's address has data that begin as a known format does, or may be fetched.
inline bool eagle_is_readable_picture(const common_json & part) {
    const common_json given = eagle_has(part, "image_url") ? part.at("image_url") : common_json();
    const std::string url = given.is_string() ? given.get<std::string>() : eagle_text_at(given, "url");
    if (url.compare(0, 4, "http") == 0) {
        const char * remote = std::getenv("LLAMA_EAGLE_REMOTE_MEDIA");
        return remote && std::string(remote) == "1";
    }
    const std::string mark = ";base64,";
    const size_t at = url.find(mark);
    const auto begins_with = [&](const std::string & data) {
        return at != std::string::npos && url.compare(at + mark.size(), data.size(), data) == 0;
    };
    return begins_with("iVBORw0KGgo") || begins_with("/9j/") || begins_with("R0lGOD") ||
           begins_with("Qk");  // PNG,
                               // JPEG, GIF, BMP in Base64
}

// Media that a model reads.
struct eagle_readable_media {
    bool images = true;
    bool audio = true;
    bool videos = true;
};

// Returns a part of a result, or a text if the model does not read it.
inline common_json eagle_result_part(const common_json & part, const eagle_readable_media & reads) {
    const std::string type = eagle_text_at(part, "type");
    const bool is_text = type == "text" || type == "input_text" || type == "output_text" || type == "refusal";
    const bool is_image = type == "image_url" || type == "input_image";
    const bool is_video = type == "input_video" || type == "video_url";
    if (is_text || (is_image && reads.images && eagle_is_readable_picture(part)) ||
        (type == "input_audio" && reads.audio) || (is_video && reads.videos)) {
        return part;
    }
    return eagle_unread_part(is_image ? "a picture" : "a part of type '" + type + "'");
}

inline void eagle_read_result(common_json & content, const eagle_readable_media & reads) {
    for (size_t i = 0; content.is_array() && i < content.size(); i++) {
        content.at(i) = eagle_result_part(common_json(content.at(i)), reads);
    }
}

inline void eagle_read_results(common_json & messages, const eagle_readable_media & reads) {
    for (size_t i = 0; messages.is_array() && i < messages.size(); i++) {
        if (eagle_text_at(messages.at(i), "role") == "tool" && eagle_has(messages.at(i), "content")) {
            eagle_read_result(messages.at(i)["content"], reads);
        }
    }
}
