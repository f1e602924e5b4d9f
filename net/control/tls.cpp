#include "net/control/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace convoy {

std::atomic<uint32_t> Tls::records_per_key{1 << 23};

namespace {

using Key = std::array<unsigned char, 32>;

constexpr size_t kTokenDigits = 64;
constexpr char kSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteId[] = {0x13, 0x01};
constexpr char kIdentity[] = "convoy1";  // travels in clear: the same for all jobs
constexpr int kReadBuffer = 128 << 10;   // bytes that one system call may bring

Key hmac(const Key& key, std::string_view text) {
    Key out;
    unsigned size = out.size();
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ENSURE(HMAC(EVP_sha256(), key.data(), int(key.size()), bytes, text.size(), out.data(), &size),
           "HMAC");
    return out;
}

// HKDF (RFC 5869) without salt, for one block.
Key derive(const std::string& token) { return hmac(hmac(Key{}, token), "convoy psk 1\x01"); }

// A new one for each call: OpenSSL frees it.
SSL_SESSION* session_of(SSL* ssl) {
    const auto& key = *static_cast<Key*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
    SSL_SESSION* session = SSL_SESSION_new();
    if (session && SSL_SESSION_set1_master_key(session, key.data(), key.size()) &&
        SSL_SESSION_set1_id_context(session, kSuiteId, sizeof kSuiteId) &&
        SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuiteId)) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* size,
              SSL_SESSION** session) {
    *identity = reinterpret_cast<const unsigned char*>(kIdentity), *size = sizeof kIdentity - 1;
    return (*session = session_of(ssl)) != nullptr;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
    *session = nullptr;  // an unknown identity: the handshake goes on, and fails, without a key
    if (std::string_view(reinterpret_cast<const char*>(identity), size) != kIdentity) return 1;
    return (*session = session_of(ssl)) != nullptr;
}

}  // namespace

std::string make_token() {
    std::array<unsigned char, kTokenDigits / 2> bytes;
    if (getentropy(bytes.data(), bytes.size()) != 0)
        fail("no random numbers: ", std::strerror(errno));
    return fmt::format("{:02x}", fmt::join(bytes, ""));
}

TlsContext make_tls(const std::string& token) {
    if (token.empty()) return nullptr;
    if (token.size() != kTokenDigits || token.find_first_not_of("0123456789abcdef") != token.npos)
        throw AccessError(cat(
            "the token is damaged: it has ", token.size(), " characters; a token has ",
            kTokenDigits, " digits: 0-9 and a-f. `trainer token` makes a new token for all ranks"));
    auto* key = new Key(derive(token));
    SSL_CTX* raw = SSL_CTX_new(TLS_method());
    TlsContext context(raw, [key](SSL_CTX* ctx) {
        SSL_CTX_free(ctx);
        OPENSSL_cleanse(key->data(), key->size());
        delete key;
    });
    ENSURE(raw, "OpenSSL has no context to give");
    SSL_CTX_set_app_data(raw, key);
    const bool set = SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) &&
                     SSL_CTX_set_ciphersuites(raw, kSuite) &&
                     SSL_CTX_set1_groups_list(raw, "X25519") && SSL_CTX_set_num_tickets(raw, 0);
    ENSURE(set, "this OpenSSL has no ", kSuite, " with X25519");
    // We issue no tickets, so a stranger's ticket is not even decrypted.
    SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_session_id_context(raw, kSuiteId, sizeof kSuiteId);  // as session_of()
    // Without this, a server could authenticate by any certificate instead of the key.
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(raw, offer_key);
    SSL_CTX_set_psk_find_session_callback(raw, find_key);
    SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(raw, 1);
    SSL_CTX_set_default_read_buffer_len(raw, kReadBuffer);
    return context;
}

Tls::Tls(TlsContext context, int socket, bool dialled)
    : context_(std::move(context)), ssl_(SSL_new(context_.get()), SSL_free) {
    ENSURE(ssl_ && SSL_set_fd(native(), socket), "OpenSSL has no connection to give");
    dialled ? SSL_set_connect_state(native()) : SSL_set_accept_state(native());
}

// The error of the last call. That call cleared errno and OpenSSL's queue of errors first.
ssize_t Tls::outcome(int result) {
    if (result > 0) return result;
    const int error = errno, kind = SSL_get_error(native(), result);
    wants_write_ = kind == SSL_ERROR_WANT_WRITE;
    errno = kind == SSL_ERROR_WANT_READ || wants_write_ ? EAGAIN
            : kind == SSL_ERROR_SYSCALL                 ? error
                                                        : EPROTO;
    const bool closed = kind == SSL_ERROR_ZERO_RETURN ||
                        (kind == SSL_ERROR_SYSCALL && error == 0) ||
                        (kind == SSL_ERROR_SSL &&
                         ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING);
    return closed ? 0 : -1;
}

ssize_t Tls::handshake() {
    ERR_clear_error(), errno = 0;
    const ssize_t done = outcome(SSL_do_handshake(native()));
    if (done < 0 && errno == EPROTO && BIO_number_written(SSL_get_wbio(native())) == 0) {
        ::send(SSL_get_fd(native()), kTlsAlert, sizeof kTlsAlert, MSG_NOSIGNAL);
        errno = EPROTO;
    }
    if (done <= 0) return done;
    // Only the key may authenticate. make_tls() allows nothing else; this is a second check.
    if (SSL_session_reused(native()) &&
        SSL_CIPHER_get_id(SSL_get_current_cipher(native())) == TLS1_3_CK_AES_128_GCM_SHA256)
        return 1;
    errno = EPROTO;
    return -1;
}

ssize_t Tls::read(std::span<std::byte> bytes) {
    ERR_clear_error(), errno = 0;
    const int most = int(std::min<size_t>(bytes.size(), 1 << 30));
    return outcome(SSL_read(native(), bytes.data(), most));
}

ssize_t Tls::write(std::span<const std::byte> bytes) {
    ERR_clear_error(), errno = 0;
    const int most = int(std::min<size_t>(bytes.size(), 1 << 30));
    const ssize_t written = outcome(SSL_write(native(), bytes.data(), most));
    // Each end counts its own records. The next write begins with the KeyUpdate message.
    if (written > 0 && ++records_ % records_per_key == 0)
        SSL_key_update(native(), SSL_KEY_UPDATE_NOT_REQUESTED);
    return written;
}

}  // namespace convoy
