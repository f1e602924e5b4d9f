#include "data/sources/http.h"

#define CURL_DISABLE_DEPRECATION  // CURLOPT_PROTOCOLS, for libcurl before 7.85
#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "src/base/sha256.h"
#include "src/base/text.h"

namespace convoy {
namespace {

using Url = std::unique_ptr<CURLU, void (*)(CURLU*)>;

std::string part_of(const Url& url, CURLUPart part, unsigned flags = 0) {
    char* text = nullptr;
    if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return "";
    const std::string copy = text;
    curl_free(text);
    return copy;
}

// A key as the path of a URL: S3 signs it with each byte as %XX, except letters, digits and -_.~/.
std::string percent_encoded(const std::string& key) {
    std::vector<std::string> parts = split(key, '/');
    for (std::string& part : parts) {
        const std::unique_ptr<char, void (*)(void*)> text(
            curl_easy_escape(nullptr, part.c_str(), int(part.size())), curl_free);
        part = text.get();
    }
    return join_text(parts, "/");
}

Location locate_http(const std::string& text) {
    const Url url(curl_url(), curl_url_cleanup);
    if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
        fail("a URL of ", text.substr(0, text.find(':')),
             " is malformed (it is not shown, as it "
             "may hold a password); it needs https://host/path");
    if (text.find("…") != text.npos)  // from a run's settings, which hold no secrets
        fail("'", text,
             "' is a URL without its password or query, which no run stores: give the whole "
             "URL again, by --data (or --val)");
    Location location;
    const std::string user = part_of(url, CURLUPART_USER, CURLU_URLDECODE);
    if (!user.empty())
        location.credentials = user + ":" + part_of(url, CURLUPART_PASSWORD, CURLU_URLDECODE);
    for (const CURLUPart part : {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_FRAGMENT})
        curl_url_set(url.get(), part, nullptr, 0);
    location.url = part_of(url, CURLUPART_URL);
    const bool has_query = !part_of(url, CURLUPART_QUERY).empty();
    curl_url_set(url.get(), CURLUPART_QUERY, nullptr, 0);
    location.name = part_of(url, CURLUPART_URL) + (has_query ? "?…" : "");
    if (!user.empty()) location.name.insert(location.name.find("//") + 2, "…@");
    return location;
}

Location locate_s3(const std::string& text, const Variable& variable) {
    const auto first_of = [&](const char* one, const char* other) {
        const std::string value = variable(one);
        return value.empty() ? variable(other) : value;
    };
    const size_t slash = text.find('/', 5);
    const std::string bucket = text.substr(5, slash - 5);
    const std::string key = slash == std::string::npos ? "" : text.substr(slash + 1);
    const bool is_bucket = std::ranges::all_of(bucket, [](unsigned char c) {
        return std::isalnum(c) || c == '.' || c == '-' || c == '_';
    });
    if (bucket.empty() || key.empty() || !is_bucket)
        fail("'", text, "' is no object of S3: it needs s3://bucket/key");
    const std::string parts = cat("/", key, "/");
    if (parts.find("/./") != std::string::npos || parts.find("/../") != std::string::npos)
        fail("'", text, "': a key with . or .. between slashes cannot be requested");

    std::string region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
    if (region.empty()) region = "us-east-1";
    std::string endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
        fail("AWS_ENDPOINT_URL is no URL: it needs http:// or https://");
    // A certificate for *.s3.REGION.amazonaws.com is not valid for a bucket with a dot in its name.
    if (endpoint.empty() && bucket.find('.') == std::string::npos)
        endpoint = cat("https://", bucket, ".s3.", region, ".amazonaws.com");
    else
        endpoint = cat(endpoint.empty() ? cat("https://s3.", region, ".amazonaws.com") : endpoint,
                       "/", bucket);
    Location location = locate_http(cat(endpoint, "/", percent_encoded(key)));
    location.name = text;
    const std::string id = variable("AWS_ACCESS_KEY_ID");
    const std::string secret = variable("AWS_SECRET_ACCESS_KEY");
    if (id.empty() != secret.empty())
        fail("only one is set of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: set both, or none");
    if (!id.empty()) {
        if (curl_version_info(CURLVERSION_NOW)->version_num < 0x075700)
            fail(text, ": this libcurl, ", LIBCURL_VERSION,
                 ", cannot sign for S3, which needs 7.87: use `make static` of a newer system");
        location.credentials = cat(id, ":", secret);
        location.signing = cat("aws:amz:", region, ":s3");
        location.token = variable("AWS_SESSION_TOKEN");
    }
    return location;
}

// The file of trusted certificates: SSL_CERT_FILE, or else the usual path of the system. The
// libcurl of a static binary knows no path of its own.
const char* certificates() {
    if (const char* named = std::getenv("SSL_CERT_FILE"); named && *named) return named;
    for (const char* file :
         {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
        if (access(file, R_OK) == 0) return file;
    return nullptr;
}

// What the user can do about an answer with this status.
std::string hint_for(long status, const std::string& region, const Location& location) {
    const bool is_s3 = location.name.starts_with("s3://"), is_signed = !location.signing.empty();
    if (status == 404 || status == 410) return "; there is no such object";
    if (status > 300 && status < 309 && !region.empty())
        return "; the bucket is in region " + printable(region) + ": set AWS_REGION";
    if (status > 300 && status < 309) return "; signed requests do not follow redirects";
    if (status != 401 && status != 403) return "";
    if (!is_s3) return "; access is refused: name a user by https://USER:PASSWORD@host/…";
    if (!is_signed)
        return "; the request was not signed: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
    return "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION, "
           "and that the key may read this object";
}

struct Transfer {
    CURL* curl;
    const Location& location;
    ObjectInfo& object;
    int file;     // -1: only size and version are wanted
    uint64_t at;  // offset of the next byte in the object
    const std::atomic<bool>& stop;
    bool is_good = false;  // the answer brings the object
    Answer answer = {};
    size_t header_bytes = 0;
    std::map<std::string, std::string> headers = {};  // of the last answer, after redirects
    std::string body = {};                            // of an error, cut
    char error[CURL_ERROR_SIZE] = "";

    bool header(std::string_view line) {
        header_bytes += line.size();
        if (header_bytes > 256 << 10) answer.fault = "the server sends headers without end";
        if (line.starts_with("HTTP/")) headers.clear();
        const size_t colon = std::min(line.find(':'), line.size() - 1);
        std::string name(line.substr(0, colon)), value(line.substr(colon + 1));
        std::ranges::transform(name, name.begin(), [](uint8_t c) { return std::tolower(c); });
        value.erase(0, value.find_first_not_of(" \t"));
        value.erase(value.find_last_not_of(" \t\r\n") + 1);
        headers[name] = value.substr(0, 256);
        if (line.find_first_not_of("\r\n") == line.npos) end_of_head();
        return answer.fault.empty();
    }

    // 206 with "bytes FIRST-LAST/SIZE", or 200 from a server that does not serve ranges.
    void end_of_head() {
        if (status() != 200 && status() != 206) return;
        uint64_t first = 0, last = 0, size = 0;
        if (status() == 200) {
            const auto length = to_number<uint64_t>(headers["content-length"]);
            if (!length) answer.fault = "the server does not tell the size (Content-Length)";
            size = length.value_or(0);
        } else if (const std::string& range = headers["content-range"];
                   std::sscanf(range.c_str(), "bytes %lu-%lu/%lu", &first, &last, &size) != 3 ||
                   first != at || last >= size || last != (file < 0 ? 0 : size - 1)) {
            answer.fault = cat("asked for the bytes from ", at, " on, the server sends '",
                               printable(range), "'");
        }
        const ObjectInfo found{size, version()};
        if (file < 0) object = found;
        if (found != object && answer.fault.empty())
            answer.fault = "it changed on the server while it was read; start again";
        at = first, is_good = answer.fault.empty();
    }

    bool write(const char* data, size_t size) {
        if (!is_good) {
            body.append(data, std::min(size, 4096 - body.size()));
            return status() >= 400 && body.size() < 4096;
        }
        if (file < 0) return status() == 206;  // the rest of a whole object is not wanted
        if (size > object.size - at)
            answer.fault =
                cat("the server sends more than the ", object.size, " bytes it announced");
        while (size > 0 && answer.fault.empty()) {
            const ssize_t n = pwrite(file, data, size, off_t(at));
            if (n < 0 && errno != EINTR)
                answer.fault = cat("cannot be stored in --cache: ", std::strerror(errno));
            const size_t written = size_t(std::max<ssize_t>(n, 0));
            data += written, size -= written, at += written, answer.received += written;
        }
        return answer.fault.empty();
    }

    long status() const {
        long status = 0;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        return status;
    }
    std::string version() {
        return headers["etag"].empty() ? headers["last-modified"] : headers["etag"];
    }

    // <Code>AccessDenied</Code> in the body of S3's errors.
    std::string s3_code() const {
        const size_t begin = body.find("<Code>"), end = body.find("</Code>");
        if (begin == body.npos || end == body.npos || end < begin || end - begin > 70) return "";
        return " (" + printable(body.substr(begin + 6, end - begin - 6)) + ")";
    }

    void finish(CURLcode result) {
        const long code = status();
        answer.wait = std::min(to_number<uint32_t>(headers["retry-after"]).value_or(0), 30u);
        if (!answer.fault.empty() || (is_good && (file < 0 || at == object.size))) return;
        answer.passing = code == 408 || code == 425 || code == 429 || code >= 500;
        answer.missing = code == 401 || code == 403 || code == 404 || code == 410;
        if (code == 416 && file < 0 && headers["content-range"] == "bytes */0") {
            object = {0, version()};  // an empty object has no range
        } else if (code >= 300 && (result == CURLE_OK || result == CURLE_WRITE_ERROR)) {
            answer.fault = cat("the server answers ", code, s3_code(),
                               hint_for(code, headers["x-amz-bucket-region"], location));
        } else if (result == CURLE_OK) {
            answer.fault = cat("the answer ended after ", at, " of ", object.size, " bytes");
            answer.passing = true;
        } else {
            answer.fault = text_of(result);
            constexpr CURLcode kFinal[] = {
                CURLE_TOO_MANY_REDIRECTS,       CURLE_SSL_CACERT_BADFILE,
                CURLE_UNSUPPORTED_PROTOCOL,     CURLE_URL_MALFORMAT,
                CURLE_PEER_FAILED_VERIFICATION, CURLE_WEIRD_SERVER_REPLY};
            answer.passing = std::ranges::count(kFinal, result) == 0;
        }
    }

    std::string text_of(CURLcode result) const {
        const std::string text = printable(*error ? error : curl_easy_strerror(result));
        if (result == CURLE_TOO_MANY_REDIRECTS) return "redirected more than 5 times";
        if (result == CURLE_SSL_CACERT_BADFILE)
            return "the certificates in the file named by SSL_CERT_FILE cannot be read";
        if (result != CURLE_PEER_FAILED_VERIFICATION) return text;
        return text + (certificates() ? "; set SSL_CERT_FILE to a file of certificates to trust"
                                      : "; no file of certificates was found: install "
                                        "ca-certificates, or set SSL_CERT_FILE to such a file");
    }
};

}  // namespace

Location locate(const std::string& url, const Variable& variable) {
    if (std::ranges::any_of(url, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
        fail("a URL holds a control character, such as a line break");
    if (url.starts_with("s3://")) return locate_s3(url, variable);
    if (url.starts_with("http://") || url.starts_with("https://")) return locate_http(url);
    fail("'", url.substr(0, url.find("://")), "://…' cannot be read: only http, https and s3 can");
}

Answer http_get(const Location& location, ObjectInfo& object, int file, uint64_t begin, long stall,
                const std::atomic<bool>& stop) {
    ENSURE(file < 0 || begin < object.size, begin, " of ", object.size);
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    thread_local const std::unique_ptr<CURL, void (*)(CURL*)> curl(
        [] {
            CURL* const made = ready == CURLE_OK ? curl_easy_init() : nullptr;
            if (made) curl_easy_setopt(made, CURLOPT_BUFFERSIZE, 256L << 10);
            return made;
        }(),
        curl_easy_cleanup);
    if (!curl) fail("libcurl cannot be started");
    const auto set = [&](CURLoption option, auto value) {
        const CURLcode result = curl_easy_setopt(curl.get(), option, value);
        ENSURE(result == CURLE_OK, "libcurl's option ", option, ": ", curl_easy_strerror(result));
    };
    Transfer transfer{curl.get(), location, object, file, begin, stop};
    for (const CURLoption data : {CURLOPT_HEADERDATA, CURLOPT_WRITEDATA, CURLOPT_XFERINFODATA})
        set(data, static_cast<void*>(&transfer));
    set(CURLOPT_HEADERFUNCTION,
        curl_write_callback([](char* data, size_t, size_t size, void* self) {
            return static_cast<Transfer*>(self)->header({data, size}) ? size : 0;
        }));
    set(CURLOPT_WRITEFUNCTION, curl_write_callback([](char* data, size_t, size_t size, void* self) {
            return static_cast<Transfer*>(self)->write(data, size) ? size : 0;
        }));
    set(CURLOPT_XFERINFOFUNCTION, curl_xferinfo_callback([](void* self, auto...) {
            return int(static_cast<Transfer*>(self)->stop);
        }));
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_ERRORBUFFER, transfer.error);
    set(CURLOPT_NOSIGNAL, 1L);  // signals are the program's
    set(CURLOPT_CONNECTTIMEOUT, stall);
    set(CURLOPT_LOW_SPEED_TIME, stall);
    set(CURLOPT_LOW_SPEED_LIMIT, 1000L);  // bytes per second

    const bool is_signed = !location.signing.empty(), is_tls = location.url.starts_with("https:");
    set(CURLOPT_URL, location.url.c_str());
    set(CURLOPT_RANGE, cat(begin, "-", file < 0 ? 0 : object.size - 1).c_str());
    set(CURLOPT_USERAGENT, "convoy");
    set(CURLOPT_HTTP_VERSION, long(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_PROTOCOLS, long(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    set(CURLOPT_REDIR_PROTOCOLS, long(CURLPROTO_HTTPS | (is_tls ? 0 : CURLPROTO_HTTP)));
    set(CURLOPT_FOLLOWLOCATION, long(!is_signed));
    set(CURLOPT_MAXREDIRS, 5L);
    if (const char* trusted = certificates()) set(CURLOPT_CAINFO, trusted);
    set(CURLOPT_USERPWD, location.credentials.empty() ? nullptr : location.credentials.c_str());
    set(CURLOPT_PATH_AS_IS, long(!is_signed));  // libcurl 8 refuses to sign such a path
    set(CURLOPT_AWS_SIGV4, is_signed ? location.signing.c_str() : nullptr);
    // S3 signs the SHA-256 of the body, which a GET does not have.
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
        is_signed ? curl_slist_append(nullptr, cat("x-amz-content-sha256: ", sha256_of("")).c_str())
                  : nullptr,
        curl_slist_free_all);
    if (!location.token.empty())
        curl_slist_append(headers.get(), cat("x-amz-security-token: ", location.token).c_str());
    set(CURLOPT_HTTPHEADER, headers.get());
    transfer.finish(curl_easy_perform(curl.get()));
    set(CURLOPT_ERRORBUFFER, nullptr);  // the buffer goes, the connection stays
    return std::move(transfer.answer);
}

}  // namespace convoy
