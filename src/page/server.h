// server.h — the page of a run over HTTP: GET and HEAD of a few fixed paths.
//
//   /             the page                 /page.css, /page.js, /charts.js   what it needs
//   /state.json   ?after=N (state.h)       /metrics                          for Prometheus
//
// One thread sleeps until a request comes. Limits: 32 connections, 8 KB for the head of a request,
// no body, 10 seconds for a request and its answer. No request changes the run. At a loopback
// address every user of the machine may look. A request must name the server by an address or as
// localhost; another name in Host is refused, because a web site could point its own name here. At
// other addresses a request needs the view token, in the URL (?t=…, which sets a cookie) or as
// Authorization: Bearer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/page/state.h"

namespace convoy {

// The files of the page, which are built into the program (assets.cpp): "/", "/page.css",
// "/page.js", and "/charts.js" (dygraphs; empty if the build did not find it).
struct Asset {
    std::string_view path, type, bytes;
    bool gzipped = false;
};
extern const Asset kAssets[4];

// The host and port of --page: "on" is 127.0.0.1:29480, a number is a port there. Resolves the
// host; throws Error if it has no address.
std::pair<std::string, uint16_t> page_address(const std::string& page);

// Serves at `page` until its end, which waits up to three seconds if there are viewers, so that
// they get the last state. `state` must outlive it. Throws Error if it cannot.
struct PageServer;
std::shared_ptr<const PageServer> serve_page(const std::string& page, const PageState& state);
// The URL to open in a browser, with the token.
std::string url_of(const PageServer& server);

}  // namespace convoy
