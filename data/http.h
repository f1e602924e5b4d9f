// http.h — whole objects at http://, https:// and s3:// URLs, one request at a time, by libcurl.
//
// What an answer means:
//   206 with the Content-Range that was asked for, or 200     the bytes
//   408, 425, 429, 5xx, a timeout, a stall, an early end,     passing: worth another try
//   no connection
//   anything else                                             final
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace convoy {

// An environment variable; "" if it is not set.
using Variable = std::function<std::string(const char*)>;
std::string environment_variable(const char* name);

// The place of an object, and the right to read it. Only `name` may be shown to people.
struct Location {
    std::string name;         // without password and query: "https://…@host/path?…"
    std::string url;          // without user and password
    std::string credentials;  // "user:password" of the URL, or "key:secret" for S3; may be ""
    std::string signing;      // how libcurl signs for S3: "aws:amz:REGION:s3"; "": not signed
    std::string token;        // of temporary keys for S3
};

// Understands a URL, for s3://bucket/key with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
// AWS_SESSION_TOKEN, AWS_REGION (or AWS_DEFAULT_REGION) and AWS_ENDPOINT_URL_S3 (or
// AWS_ENDPOINT_URL). Contacts no server. Throws Error for other texts.
Location locate(const std::string& url, const Variable& variable = environment_variable);

struct ObjectInfo {
    uint64_t size = 0;         // in bytes
    std::string version = {};  // ETag, or the time of the last change; "": the server gives neither
    bool operator==(const ObjectInfo&) const = default;
};

struct Answer {
    std::string fault;      // "": success
    bool passing = false;   // the fault may go away
    bool missing = false;   // there is no such object, or access is refused
    double wait = 0;        // seconds that the server asks to be left alone
    uint64_t received = 0;  // bytes written to the file
};

// One connection, kept open between requests. Not for two threads at once.
class HttpClient {
 public:
    // stall: seconds without a connection, or with next to no data, after which a request ends.
    // Every request ends within a second once `stop` is set.
    HttpClient(long stall, const std::atomic<bool>& stop);
    ~HttpClient();

    // Blocking. They follow a few redirects, but not with a signed request, and not from https to
    // http. look() finds out size and version; fetch() writes the object's bytes from `begin` on to
    // the file (at the same offsets; from 0 on where the server does not serve ranges).
    Answer look(const Location& location, ObjectInfo& object);
    Answer fetch(const Location& location, ObjectInfo object, int file, uint64_t begin);

 private:
    struct Transfer;
    template <class Value>
    void set(int option, Value value);
    Answer run(Transfer& transfer, const std::string& range);

    void* const curl_;
    const std::atomic<bool>& stop_;
};

}  // namespace convoy
