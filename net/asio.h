// asio.h — the only file that includes Asio (stand-alone, header only).
//
// <version> goes first: Asio 1.22 decides by its macros whether the compiler has coroutines.
#pragma once

#include <version>

#ifndef ASIO_STANDALONE
#define ASIO_STANDALONE
#endif
#define ASIO_NO_DEPRECATED

// GCC 12 takes the frame of a coroutine, which Asio allocates and frees by a pair of its own, for a
// mismatch whenever it inlines only one of the two.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

#include <asio.hpp>
#include <asio/experimental/deferred.hpp>
#include <asio/experimental/parallel_group.hpp>
