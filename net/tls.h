// tls.h — TLS 1.3 between ranks, keyed by the token of the job: whoever holds it is let in, and of
// anybody else no byte reaches a parser of ours.
//
//   text of a token   52 characters of Crockford's base32, which are 32 random bytes, and one that
//                     shows a wrong character or two swapped ones
//   key               HKDF-SHA256(bytes, "convoy psk 1"), an external PSK (RFC 8446, 9257)
//
// One suite, one group, a fresh X25519 exchange for each connection, no certificates, no tickets.
// A key encrypts 2^23 records of 16 KB before the next takes its place; 2^24.5 are safe.
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

// This side or the other one may not talk to whom it found: no wait helps.
struct AccessError : Error {
    using Error::Error;
};

std::string make_token();

// What the connections of a process share; null without a token: they are plain.
using TlsContext = std::shared_ptr<ssl_ctx_st>;
// `token`: as make_token() returns it, or "". Throws AccessError that says how it is damaged.
TlsContext make_tls(const std::string& token);

// What TLS answers to those that do not speak it or hold no key: alert 40, handshake_failure.
inline constexpr char kTlsAlert[] = {0x15, 3, 3, 0, 2, 2, 40};

// One connection, on a socket in non-blocking mode that outlives it; used by one thread at a time.
// The calls return as recv() and send() do: bytes, 0 where the other end has closed, -1 with errno:
// EAGAIN where the socket is to be waited for, EPROTO for what no holder of the token sends.
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
