#include "net/control/tls.h"

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

constexpr std::string_view kDigits = "0123456789abcdefghjkmnpqrstvwxyz";  // Crockford's base32
constexpr size_t kTokenDigits = 52;                                       // and the check
constexpr char kSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteId[] = {0x13, 0x01};
constexpr char kIdentity[] = "convoy1";  // travels in clear: the same for all jobs
constexpr int kReadBuffer = 128 << 10;   // bytes that one system call may bring

// A sum over GF(32) that is 0 for a token with its check digit. It detects every single wrong digit
// and every swap of two neighbours.
unsigned checksum(unsigned sum, unsigned digit) {
    return (sum << 1 ^ (sum & 16 ? 0x25 : 0) ^ digit) & 31;
}

Key parse_token(const std::string& text) {
    const auto damaged = [](const auto&... why) {
        throw AccessError(cat("the token is damaged: ", why...,
                              "; `trainer token` makes a new token for all ranks"));
    };
    if (text.size() != kTokenDigits + 1)
        damaged("it has ", text.size(), " characters, not ", kTokenDigits + 1);
    Key key{};
    unsigned sum = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const size_t digit = kDigits.find(text[i]);
        if (digit == kDigits.npos) damaged("its character ", i + 1, " cannot be in a token");
        sum = checksum(sum, unsigned(digit));
        for (size_t bit = 0; bit < 5 && i < kTokenDigits; ++bit)
            if (const size_t at = 5 * i + bit; at < 256 && (digit >> (4 - bit) & 1))
                key[at / 8] |= (unsigned char)(0x80 >> at % 8);
    }
    if (sum != 0) damaged("a character is wrong, or two are swapped");
    return key;
}

Key hmac(const Key& key, std::string_view text) {
    Key out;
    unsigned size = out.size();
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ENSURE(HMAC(EVP_sha256(), key.data(), int(key.size()), bytes, text.size(), out.data(), &size),
           "HMAC");
    return out;
}

// HKDF (RFC 5869) without salt, for one block.
Key derive(const Key& token) {
    const Key extracted = hmac(Key{}, {reinterpret_cast<const char*>(token.data()), token.size()});
    return hmac(extracted, "convoy psk 1\x01");
}

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
    std::array<unsigned char, 33> bytes{};  // the last one stays 0: 256 bits are 51.2 digits
    if (getentropy(bytes.data(), 32) != 0) fail("no random numbers: ", std::strerror(errno));
    std::string text;
    unsigned sum = 0;
    for (size_t i = 0; i < kTokenDigits; ++i) {
        const size_t at = 5 * i;
        const unsigned two = unsigned(bytes[at / 8] << 8 | bytes[std::min<size_t>(at / 8 + 1, 32)]);
        const unsigned digit = two >> (11 - at % 8) & 31;
        sum = checksum(sum, digit);
        text += kDigits[digit];
    }
    return text + kDigits[checksum(sum, 0)];
}

TlsContext make_tls(const std::string& token) {
    if (token.empty()) return nullptr;
    auto* key = new Key(derive(parse_token(token)));
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
