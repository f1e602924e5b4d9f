// http.h — requests for objects at http://, https:// and s3:// URLs, by libcurl.
//
// The result of each answer:
//   206 with the Content-Range that was asked for, or 200     the bytes
//   408, 425, 429, 5xx, no connection, a stall, an early end  a fault that may pass: try again
//   anything else                                             a fault that stays
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "src/base/text.h"

namespace convoy {

using Variable = std::function<std::string(const char*)>;  // of the environment, by its name

// The address of an object, and the credentials to read it. Only `name` may be shown to people.
struct Location {
    std::string name;         // without password and query: "https://…@host/path?…"
    std::string url;          // without user and password
    std::string credentials;  // "user:password" of the URL, or "key:secret" for S3; may be ""
    std::string signing;      // how libcurl signs for S3: "aws:amz:REGION:s3"; "": not signed
    std::string token;        // of temporary keys for S3
};

// Parses a URL. For s3://bucket/key it uses AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN, AWS_REGION (or AWS_DEFAULT_REGION) and AWS_ENDPOINT_URL_S3 (or
// AWS_ENDPOINT_URL). Contacts no server. Throws Error if the text is no such URL.
Location locate(const std::string& url, const Variable& variable = environment_variable);

struct ObjectInfo {
    uint64_t size = 0;         // in bytes
    std::string version = {};  // ETag, or the time of the last change; "": the server gives neither
    bool operator==(const ObjectInfo&) const = default;
};

struct Answer {
    std::string fault = {};  // "": success
    bool passing = false;    // the fault may pass
    bool missing = false;    // there is no such object, or access is refused
    double wait = 0;         // seconds until the server wants the next request (Retry-After)
    uint64_t received = 0;   // bytes written to the file
};

// Makes one request, blocking. With file = -1 it finds the size and version of `object`. Otherwise
// it writes the object's bytes from `begin` on to the file, at the same offsets; if the server does
// not serve ranges, it writes all bytes. A request ends after `stall` seconds without a connection
// or almost without data, and within a second after `stop` is set. It follows redirects, except if
// the request is signed, and from https to http. Each thread keeps its connections open.
Answer http_get(const Location& location, ObjectInfo& object, int file, uint64_t begin, long stall,
                const std::atomic<bool>& stop);

}  // namespace convoy
