// server.h — the page of a run over HTTP: GET and HEAD of a few fixed paths.
//
//   /             the page                 /page.css, /page.js, /charts.js   what it needs
//   /state.json   ?after=N (state.h)       /metrics                          for Prometheus
//
// One thread, which sleeps until a request comes; 32 connections, 8 KB for the head of a request
// and no body, 10 seconds for a silent one. No request changes the run. At loopback any user of the
// machine may look, by an address or as localhost: another name in Host is refused, since a web
// site could point its own name here. At other addresses a request needs the view token, in the URL
// (?t=…, which leaves a cookie) or as Authorization: Bearer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/page/state.h"

namespace convoy {

// Host and port of --page; 127.0.0.1:29480 for "on". Throws Error.
std::pair<std::string, uint16_t> page_address(const std::string& page);

class PageServer {
 public:
    // Begins to serve at `page`; `state` must outlive it. Throws Error where it cannot.
    PageServer(const std::string& page, const PageState& state);
    // Lets viewers see the last state: takes up to three seconds, and none without viewers.
    ~PageServer();
    // What to open in a browser, with the token. host: how other machines reach this one, where
    // the page is at any address of it.
    std::string url(const std::string& host) const;

 private:
    struct Server;
    std::unique_ptr<Server> server_;
};

}  // namespace convoy
