// http.cpp — see http.h.
#include "data/http.h"

#include <curl/curl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "src/base/check.h"
#include "src/base/number.h"
#include "src/base/text.h"

namespace convoy {
namespace {

// SHA-256 of no bytes: the body of a GET, which S3 wants to be signed.
constexpr const char* kEmptyHash =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

using Url = std::unique_ptr<CURLU, void (*)(CURLU*)>;

std::string part_of(const Url& url, CURLUPart part, unsigned flags = 0) {
    char* text = nullptr;
    if (curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return "";
    const std::string copy = text;
    curl_free(text);
    return copy;
}

// A key as the path of a URL: what S3's signature expects, each byte but these as %XX.
std::string percent_encoded(const std::string& key) {
    std::string text;
    for (const unsigned char c : key)
        if (std::isalnum(c) || std::strchr("-_.~/", c))
            text += char(c);
        else
            text += fmt::format("%{:02X}", c);
    return text;
}

Location locate_http(const std::string& text) {
    const Url url(curl_url(), curl_url_cleanup);
    if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
        fail("a URL of ", text.substr(0, text.find(':')),
             " is malformed (it is not shown, as it "
             "may hold a password); it needs https://host/path");
    if (text.find("…") != text.npos)  // from a run's settings, which hold no secrets
        fail("'", text,
             "' stands for a URL with a password or a query, which is not kept: give it "
             "again, by --data (or --val)");
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
        fail("'", text, "': a key with . or .. between slashes cannot be asked for");

    std::string region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
    if (region.empty()) region = "us-east-1";
    std::string endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
        fail("AWS_ENDPOINT_URL is no URL: it needs http:// or https://");
    // A certificate for *.s3.REGION.amazonaws.com holds for one name before the dot.
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
        fail("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set: set both, or none");
    if (!id.empty()) {
        if (curl_version_info(CURLVERSION_NOW)->version_num < 0x075700)
            fail(text, ": this libcurl, ", LIBCURL_VERSION,
                 ", cannot sign for S3: it takes 7.87; use `make static` of a newer system");
        location.credentials = cat(id, ":", secret);
        location.signing = cat("aws:amz:", region, ":s3");
        location.token = variable("AWS_SESSION_TOKEN");
    }
    return location;
}

// Certificates to trust, where this libcurl has none built in: the file of most systems.
const char* certificates() {
    if (const char* named = std::getenv("SSL_CERT_FILE"); named && *named) return named;
    for (const char* file :
         {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
        if (access(file, R_OK) == 0) return file;
    return nullptr;
}

}  // namespace

std::string environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

Location locate(const std::string& url, const Variable& variable) {
    if (std::ranges::any_of(url, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
        fail("a URL holds a control character, such as a line break");
    if (url.starts_with("s3://")) return locate_s3(url, variable);
    if (url.starts_with("http://") || url.starts_with("https://")) return locate_http(url);
    fail("'", url.substr(0, url.find("://")), "://…' cannot be read: only http, https and s3 can");
}

struct HttpClient::Transfer {
    CURL* curl;
    const std::atomic<bool>& stop;
    uint64_t begin;
    std::span<uint8_t> bytes;
    Answer answer = {};
    size_t header_bytes = 0;
    // Of the headers of the last answer: those of redirects come before.
    std::string range = {}, etag = {}, changed = {}, region = {};
    std::string body = {};  // of an error, cut
    char error[CURL_ERROR_SIZE] = "";

    static size_t header(char* data, size_t, size_t size, void* self) {
        return static_cast<Transfer*>(self)->header(std::string_view(data, size)) ? size : 0;
    }
    static size_t write(char* data, size_t, size_t size, void* self) {
        return static_cast<Transfer*>(self)->write(data, size) ? size : 0;
    }
    static int progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
        return static_cast<Transfer*>(self)->stop;
    }

    long status() const {
        long status = 0;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        return status;
    }

    bool header(std::string_view line) {
        header_bytes += line.size();
        if (header_bytes > 256 << 10) answer.fault = "the server sends headers without end";
        if (line.starts_with("HTTP/")) range = etag = changed = region = "";
        const size_t colon = std::min(line.find(':'), line.size() - 1);
        const std::string name(line.substr(0, colon));
        std::string_view value = line.substr(colon + 1);
        value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
        value = value.substr(0, value.find_last_not_of(" \t\r\n") + 1);
        for (const auto& [known, field] :
             {std::pair{"content-range", &range}, std::pair{"etag", &etag},
              std::pair{"last-modified", &changed}, std::pair{"x-amz-bucket-region", &region}})
            if (strcasecmp(name.c_str(), known) == 0) *field = value.substr(0, 256);
        if (line.find_first_not_of("\r\n") == line.npos && status() == 206) check_range();
        return answer.fault.empty();
    }

    bool write(const char* data, size_t size) {
        const long code = status();
        if (code != 206) {
            body.append(data, std::min(size, 4096 - body.size()));
            return code >= 400 && body.size() < 4096;  // a whole object is not fetched
        }
        if (size > bytes.size() - answer.received)
            answer.fault = cat("the server sends more than the ", bytes.size(), " bytes asked for");
        if (!answer.fault.empty()) return false;
        std::memcpy(bytes.data() + answer.received, data, size);
        answer.received += size;
        return true;
    }

    // "bytes FIRST-LAST/TOTAL" must be what was asked for, up to the object's end. Cuts `bytes`.
    void check_range() {
        const size_t dash = range.find('-'), slash = range.find('/');
        const bool is_range = range.starts_with("bytes ") && dash < slash && slash != range.npos;
        const auto number = [&](size_t at, size_t end) {
            return to_number<uint64_t>(is_range ? range.substr(at, end - at) : "");
        };
        const auto first = number(6, dash), last = number(dash + 1, slash);
        answer.total = number(slash + 1, range.size()).value_or(0);
        if (!first || !last || *first != begin || *last >= answer.total ||
            *last - *first != std::min<uint64_t>(bytes.size(), answer.total - begin) - 1) {
            answer.fault = cat("asked for bytes ", begin, "-", begin + bytes.size() - 1,
                               ", the server sends '", printable(range), "'");
            return;
        }
        bytes = bytes.first(size_t(*last - *first + 1));
    }

    // <Code>AccessDenied</Code> in the body of S3's errors.
    std::string s3_code() const {
        const size_t begin = body.find("<Code>"), end = body.find("</Code>");
        if (begin == body.npos || end == body.npos || end < begin || end - begin > 70) return "";
        return " (" + printable(body.substr(begin + 6, end - begin - 6)) + ")";
    }

    void judge(CURLcode result, const Location& location) {
        const long code = status();
        curl_off_t wait = 0;
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait);
        answer.wait = double(std::clamp<curl_off_t>(wait, 0, 30));
        answer.version = etag.empty() ? changed : etag;
        if (!answer.fault.empty()) return;
        if (result == CURLE_OK && code == 206) {
            if (answer.received == bytes.size()) return;
            answer.fault =
                cat("the answer ended after ", answer.received, " of ", bytes.size(), " bytes");
            answer.passing = true;
        } else if (code >= 200 && (result == CURLE_OK || result == CURLE_WRITE_ERROR)) {
            judge_status(code, location);
        } else {
            judge_failure(result);
        }
    }

    void judge_status(long code, const Location& location) {
        const bool is_s3 = location.name.starts_with("s3://");
        answer.passing = code == 408 || code == 425 || code == 429 || code >= 500;
        answer.missing = code == 401 || code == 403 || code == 404 || code == 410;
        std::string hint;
        if (code == 200 && begin == 0 && range.empty() && body.empty())
            return;  // an empty object has no range
        if (code == 200)
            hint =
                "; the server sends the whole object: it does not serve ranges, which is "
                "needed; nginx, Apache and S3 do";
        else if (code == 416 && range == "bytes */0")
            return;
        else if (code == 416)
            hint = cat("; the object ends before byte ", begin);
        else if (code == 301 || code == 302 || code == 307 || code == 308)
            hint = region.empty()
                       ? "; signed requests do not follow redirects"
                       : cat("; the bucket is in region ", printable(region), ": set AWS_REGION");
        else if ((code == 401 || code == 403) && is_s3 && location.signing.empty())
            hint = "; the request was not signed: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        else if ((code == 401 || code == 403) && is_s3)
            hint =
                "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and "
                "AWS_REGION, and that the key may read this object";
        else if (code == 401 || code == 403)
            hint = "; access is refused: a user can be named by https://USER:PASSWORD@host/…";
        else if (code == 404 || code == 410)
            hint = "; there is no such object";
        answer.fault = cat("the server answers ", code, s3_code(), hint);
    }

    void judge_failure(CURLcode result) {
        switch (result) {
            case CURLE_TOO_MANY_REDIRECTS: answer.fault = "redirected more than 5 times"; return;
            case CURLE_UNSUPPORTED_PROTOCOL:
            case CURLE_WEIRD_SERVER_REPLY:
            case CURLE_URL_MALFORMAT:
            case CURLE_PEER_FAILED_VERIFICATION: break;
            case CURLE_SSL_CACERT_BADFILE:
                answer.fault = "the certificates named by SSL_CERT_FILE cannot be read";
                return;
            default: answer.passing = true;
        }
        answer.fault = printable(*error ? error : curl_easy_strerror(result));
        if (result == CURLE_PEER_FAILED_VERIFICATION)
            answer.fault += certificates() ? "; name a file of certificates to trust by "
                                             "SSL_CERT_FILE"
                                           : "; no file of certificates was found: install "
                                             "ca-certificates, or name one by SSL_CERT_FILE";
    }
};

HttpClient::HttpClient(long stall, const std::atomic<bool>& stop)
    : curl_([] {
          static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
          return ready == CURLE_OK ? curl_easy_init() : nullptr;
      }()),
      stop_(stop) {
    if (!curl_) fail("libcurl cannot be started");
    set(CURLOPT_USERAGENT, "convoy");
    set(CURLOPT_HTTP_VERSION, long(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_MAXREDIRS, 5L);
    set(CURLOPT_CONNECTTIMEOUT, stall);
    set(CURLOPT_LOW_SPEED_TIME, stall);
    set(CURLOPT_LOW_SPEED_LIMIT, 1000L);  // bytes a second
    set(CURLOPT_NOSIGNAL, 1L);            // signals are the program's
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_BUFFERSIZE, 256L << 10);
    set(CURLOPT_HEADERFUNCTION, static_cast<curl_write_callback>(Transfer::header));
    set(CURLOPT_WRITEFUNCTION, static_cast<curl_write_callback>(Transfer::write));
    set(CURLOPT_XFERINFOFUNCTION, static_cast<curl_xferinfo_callback>(Transfer::progress));
    if (const char* file = certificates()) set(CURLOPT_CAINFO, file);
}

HttpClient::~HttpClient() { curl_easy_cleanup(curl_); }

template <class Value>
void HttpClient::set(int option, Value value) {
    const CURLcode result = curl_easy_setopt(curl_, CURLoption(option), value);
    ENSURE(result == CURLE_OK, "libcurl's option ", option, ": ", curl_easy_strerror(result));
}

Answer HttpClient::get(const Location& location, uint64_t begin, std::span<uint8_t> bytes) {
    ENSURE(!bytes.empty(), "no bytes");
    Transfer transfer{.curl = curl_, .stop = stop_, .begin = begin, .bytes = bytes};
    for (const CURLoption data : {CURLOPT_HEADERDATA, CURLOPT_WRITEDATA, CURLOPT_XFERINFODATA})
        set(data, static_cast<void*>(&transfer));
    set(CURLOPT_ERRORBUFFER, transfer.error);
    set(CURLOPT_URL, location.url.c_str());
    set(CURLOPT_RANGE, cat(begin, "-", begin + bytes.size() - 1).c_str());
    const bool is_tls = location.url.starts_with("https:");
#if LIBCURL_VERSION_NUM >= 0x075500
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, is_tls ? "https" : "http,https");
#else
    set(CURLOPT_PROTOCOLS, long(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    set(CURLOPT_REDIR_PROTOCOLS, long(CURLPROTO_HTTPS | (is_tls ? 0 : CURLPROTO_HTTP)));
#endif
    const bool is_signed = !location.signing.empty();
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
        is_signed ? curl_slist_append(nullptr, cat("x-amz-content-sha256: ", kEmptyHash).c_str())
                  : nullptr,
        curl_slist_free_all);
    if (!location.token.empty())
        curl_slist_append(headers.get(), cat("x-amz-security-token: ", location.token).c_str());
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    set(CURLOPT_AWS_SIGV4, is_signed ? location.signing.c_str() : nullptr);
    set(CURLOPT_USERPWD, location.credentials.empty() ? nullptr : location.credentials.c_str());
    set(CURLOPT_FOLLOWLOCATION, long(!is_signed));
    set(CURLOPT_PATH_AS_IS, long(!is_signed));  // libcurl 8 refuses to sign such a path
    transfer.judge(curl_easy_perform(curl_), location);
    set(CURLOPT_ERRORBUFFER, nullptr);  // the buffer goes, the connection stays
    return std::move(transfer.answer);
}

}  // namespace convoy
