// http.h — parts of objects at http://, https:// and s3:// URLs, one request at a time, by libcurl.
//
// What an answer is taken for:
//   206 with the Content-Range that was asked for    the bytes
//   408, 425, 429, 5xx, a timeout, a stall, an end   passing: worth another try
//   before the last byte, no connection
//   anything else, also 200 (ranges are ignored)     final
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace convoy {

// An environment variable; "" if it is not set.
using Variable = std::function<std::string(const char*)>;
std::string environment_variable(const char* name);

// Where an object lies, and the right to read it. Only `name` may be shown to people.
struct Location {
    std::string name;         // without password and query: "https://…@host/path?…"
    std::string url;          // without user and password
    std::string credentials;  // "user:password" of the URL, or "key:secret" for S3; may be ""
    std::string signing;      // how libcurl signs for S3: "aws:amz:REGION:s3"; "": not signed
    std::string token;        // of temporary keys for S3
};

// Understands a URL, for s3://bucket/key with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN, AWS_REGION (or AWS_DEFAULT_REGION) and AWS_ENDPOINT_URL_S3 (or
// AWS_ENDPOINT_URL). Contacts nobody. Throws Error for what is no such URL.
Location locate(const std::string& url, const Variable& variable = environment_variable);

struct Answer {
    std::string fault;      // "": the bytes are there
    bool passing = false;   // a fault that may go away
    bool missing = false;   // or: there is no such object, or access is refused
    double wait = 0;        // seconds that the server asks to be left alone
    uint64_t total = 0;     // bytes of the whole object
    uint64_t received = 0;  // of those asked for: fewer where the object ends
    std::string version;    // ETag, or else time of the last change; "": the server gives neither
};

// One connection, kept open between requests. Not for two threads at once.
class HttpClient {
 public:
    // stall: seconds without a connection, or with next to no data, after which a request ends.
    // Ends within a second once `stop` is set.
    HttpClient(long stall, const std::atomic<bool>& stop);
    ~HttpClient();

    // Bytes of the object from `begin` on into `bytes`; blocks. Follows a few redirects, but not
    // with a signed request, and not from https to http.
    Answer get(const Location& location, uint64_t begin, std::span<uint8_t> bytes);

 private:
    struct Transfer;
    template <class Value>
    void set(int option, Value value);

    void* const curl_;
    const std::atomic<bool>& stop_;
};

}  // namespace convoy
