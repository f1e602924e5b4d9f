// tls.h — TLS 1.3 between ranks, keyed by the job's token. Only holders of the token get in; no
// byte of anybody else reaches our parsers.
//
//   token   32 random bytes as 64 hexadecimal digits
//   key     HKDF-SHA256(the digits, "convoy psk 1"), an external PSK (RFC 8446, 9257)
//
// One suite, one group, a fresh X25519 exchange per connection, no certificates, no tickets. A key
// encrypts 2^23 records of 16 KB, then the next key follows; 2^24.5 records would be safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "src/base/check.h"

struct ssl_st;      // SSL and
struct ssl_ctx_st;  // SSL_CTX of OpenSSL

namespace convoy {

// One side may not talk to the other: waiting does not help.
struct AccessError : Error {
    using Error::Error;
};

std::string make_token();

// TLS state that the connections of a process share. Null without a token: plain connections.
using TlsContext = std::shared_ptr<ssl_ctx_st>;
// `token`: as make_token() returns it, or "". Throws AccessError if it is damaged.
TlsContext make_tls(const std::string& token);

// The answer to a peer that does not speak TLS or has no key: alert 40, handshake_failure.
inline constexpr char kTlsAlert[] = {0x15, 3, 3, 0, 2, 2, 40};

// One connection, on a socket in non-blocking mode that outlives it; used by one thread at a time.
// The calls return like recv() and send(): bytes; 0 if the other end has closed; -1 with errno
// EAGAIN if the caller must wait for the socket, EPROTO for bytes that no token holder sends.
class Tls {
 public:
    Tls(TlsContext context, int socket, bool dialled);

    ssize_t handshake();  // 1 when done
    ssize_t read(std::span<std::byte> bytes);
    // One record at most. After -1 the next call must begin with the same bytes.
    ssize_t write(std::span<const std::byte> bytes);
    bool wants_write() const { return wants_write_; }  // what EAGAIN waits for

    static std::atomic<uint32_t> records_per_key;  // tests lower it
    ssl_st* native() { return ssl_.get(); }

 private:
    ssize_t outcome(int result);

    TlsContext context_;
    std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
    uint32_t records_ = 0;
    bool wants_write_ = false;
};

}  // namespace convoy
