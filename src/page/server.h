// server.h — the page of a run over HTTP: GET and HEAD of a few fixed paths, POST of one.
//
//   /             the page                 /page.css, /page.js, /charts.js   what it needs
//   /state.json   ?after=N (state.h)       /metrics                          for Prometheus
//   /trace        POST: asks for a trace   /trace.json.gz                    the newest one
//
// One thread, which sleeps until somebody asks; 32 connections, 8 KB for a request's head and no
// body, 10 seconds for a silent one. What is learned stays the same; for a trace all ranks
// wait a moment, so one in 10 seconds is taken. At loopback anybody on the machine may look, by an
// address or as localhost: another name in Host is refused, since a web site could point its own
// name here. At other addresses a request needs the view token, in the URL (?t=…, which leaves a
// cookie) or as Authorization: Bearer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "src/page/state.h"

namespace convoy {

// Host and port of --page; 127.0.0.1:29480 for "on". Throws Error.
std::pair<std::string, uint16_t> page_address(const std::string& page);

class PageServer {
 public:
    // Begins to serve at `page`; `state` must outlive it. Throws Error
    // where it cannot. folder: the run's, for its traces. `asked` is set where one is wanted; null:
    // the run has ended.
    PageServer(const std::string& page, const PageState& state, const std::string& folder = "",
               std::atomic<bool>* asked = nullptr);
    // Lets whoever watches see the last state: takes up to three seconds, none without watchers.
    ~PageServer();
    // What to open in a browser, with the token. host: how other machines reach this one, where
    // the page is at any address of it.
    std::string url(const std::string& host) const;

 private:
    struct Server;
    std::unique_ptr<Server> server_;
};

}  // namespace convoy
