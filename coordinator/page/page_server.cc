#include "coordinator/page/page_server.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "CivetServer.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/connection_places.h"
#include "base/metrics/bearer_token.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "coordinator/page/assets.h"

namespace pactrain::coordinator {
namespace {

// A browser has six connections; and viewers that gave way end by and by.
constexpr int kThreadsForTheRest = 32;

// Who pushes a viewer out waits so long, so that those who push each other out
// as fast as they can take no processor.
constexpr absl::Duration kPushPause = absl::Milliseconds(100);

// Nothing but what this server sends is loaded or run.
constexpr absl::string_view kSafety =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

bool Write(mg_connection* connection, absl::string_view text) {
  return mg_write(connection, text.data(), text.size()) ==
         static_cast<int>(text.size());
}

void Answer(mg_connection* connection, absl::string_view status,
            absl::string_view type, absl::string_view body,
            absl::string_view more = "") {
  Write(connection, absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ",
                                 type, "\r\nContent-Length: ", body.size(),
                                 "\r\n", kSafety, more, "\r\n")) &&
      Write(connection, body);
}

void Refuse(mg_connection* connection, absl::string_view status,
            absl::string_view why, absl::string_view more = "") {
  Answer(connection, status, "text/plain; charset=utf-8",
         absl::StrCat(why, "\n"), more);
}

absl::string_view Header(mg_connection* connection, const char* name) {
  const char* value = mg_get_header(connection, name);
  return value == nullptr ? "" : value;
}

std::optional<std::string> Parameter(const mg_request_info& request,
                                     const char* name) {
  char value[128] = {};
  const char* query = request.query_string;
  if (query == nullptr ||
      mg_get_var(query, std::strlen(query), name, value, sizeof(value)) < 0) {
    return std::nullopt;
  }
  return value;
}

// Of a Host header, which has a port or not.
bool IsAddressOfThisMachine(absl::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon != host.npos && host.find(']', colon) == host.npos) {
    host = host.substr(0, colon);
  }
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return absl::EqualsIgnoreCase(host, "localhost") || base::IsAddress(host);
}

std::optional<View> ViewOf(const mg_request_info& request) {
  const std::optional<std::string> name = Parameter(request, "view");
  if (name == "overview") return View{View::Kind::kOverview, ""};
  if (name == "links") return View{View::Kind::kLinks, ""};
  const std::optional<std::string> job = Parameter(request, "job");
  if (name == "job" && job) return View{View::Kind::kJob, *job};
  return std::nullopt;
}

class Handler : public CivetHandler {
 public:
  Handler(const PageServer::Options& options, base::HttpServer* http,
          PageBoard* board, PageServer::Refused refused)
      : token_file_(options.access.token_file),
        http_(http),
        board_(board),
        refused_(std::move(refused)),
        boot_(absl::StrFormat("%x", absl::ToUnixNanos(absl::Now()))),
        max_viewers_(options.max_viewers),
        places_({{max_viewers_, max_viewers_, max_viewers_}, max_viewers_}) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (!MayRead(connection)) return true;
    const mg_request_info& request = *mg_get_request_info(connection);
    const absl::string_view path = request.local_uri;
    if (path == "/events") {
      Stream(connection, request);
      return true;
    }
    if (path == "/rules.json") {
      Answer(connection, "200 OK", "application/json", PageModel::Rules());
      return true;
    }
    for (const Asset& asset : Assets()) {
      if (path != asset.path && !(path == "/" && asset.path == "/index.html")) {
        continue;
      }
      Answer(connection, "200 OK", asset.type, asset.body);
      return true;
    }
    Refuse(connection, "404 Not Found",
           "there is no such page here; the page is at /");
    return true;
  }
  bool handlePost(CivetServer*, mg_connection* c) override { return No(c); }
  bool handlePut(CivetServer*, mg_connection* c) override { return No(c); }
  bool handlePatch(CivetServer*, mg_connection* c) override { return No(c); }
  bool handleDelete(CivetServer*, mg_connection* c) override { return No(c); }
  bool handleOptions(CivetServer*, mg_connection* c) override { return No(c); }
  bool handleHead(CivetServer*, mg_connection* c) override { return No(c); }

 private:
  static bool No(mg_connection* connection) {
    Refuse(connection, "405 Method Not Allowed",
           "the page is read-only; GET is allowed", "Allow: GET\r\n");
    return true;
  }

  bool MayRead(mg_connection* connection) {
    if (token_file_.empty()) {
      if (IsAddressOfThisMachine(Header(connection, "Host"))) return true;
      Refuse(connection, "403 Forbidden",
             "without --page-token-file the page is read as localhost or under "
             "an IP address, not under another name");
      return false;
    }
    const char* shown = mg_get_header(connection, "Authorization");
    const absl::Status may = base::CheckBearerOrPassword(token_file_, shown);
    if (may.ok()) return true;
    // Browsers ask first without one.
    if (shown != nullptr) {
      refused_(
          http_->ClientOf(connection).source,
          absl::StrCat("it showed a wrong token to the page: ", may.message()));
    }
    Refuse(connection, "401 Unauthorized",
           "the page asks for the reader's token: any user, and the token as "
           "the password",
           "WWW-Authenticate: Basic realm=\"PacTrain\", charset=\"UTF-8\"\r\n");
    return false;
  }

  void Stream(mg_connection* connection, const mg_request_info& request) {
    const std::optional<View> view = ViewOf(request);
    if (!view) {
      return Refuse(connection, "400 Bad Request",
                    "view must be overview, links or job, and a job has its "
                    "name in job");
    }
    const base::HttpFront::Client client = http_->ClientOf(connection);
    if (client.source.empty()) return;
    Viewer viewer = {client.place};
    const base::ConnectionPlaces::Place place = Enter(client.source, viewer);
    Send(connection, *view, viewer.gave_way);
    base::MutexLock lock(&mu_);
    viewers_.erase(place);
    places_.Release(place);
    // Else what it has not read yet would keep a connection.
    http_->Close(client.place);
  }

  struct Viewer {
    base::ConnectionPlaces::Place connection;  // At the front.
    std::atomic<bool> gave_way = false;
  };
  // The viewer's place, where another one gives way if it must.
  base::ConnectionPlaces::Place Enter(const std::string& source,
                                      Viewer& viewer) {
    std::optional<base::ConnectionPlaces::GaveWay> gave_way;
    base::ConnectionPlaces::Place place = 0;
    {
      base::MutexLock lock(&mu_);
      base::Refusal limit = {};
      // No viewer is ever proven, so one can always give way.
      const auto admission = places_.Admit(source, &limit);
      PT_CHECK(admission.ok());
      place = admission->place;
      gave_way = admission->gave_way;
      viewers_[place] = &viewer;
      http_->Keep(viewer.connection);
      if (gave_way) {
        Viewer& other = *viewers_.at(gave_way->place);
        other.gave_way = true;
        http_->Close(other.connection);  // Its thread may wait to write.
      }
    }
    if (!gave_way) return place;
    board_->Wake();
    refused_(gave_way->source,
             absl::StrCat("a viewer of it gave way to another: ", max_viewers_,
                          " look at the page, the most that may, and most of "
                          "them from there"));
    absl::SleepFor(kPushPause);
    return place;
  }

  void Send(mg_connection* connection, const View& view,
            const std::atomic<bool>& gave_way) {
    if (!Write(connection, absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: "
                                        "text/event-stream\r\n",
                                        kSafety, "\r\nretry: 2000\n\n"))) {
      return;
    }
    uint64_t seen = LastSeen(Header(connection, "Last-Event-ID"));
    while (true) {
      const PageBoard::Message message = board_->Next(view, seen, gave_way);
      if (message.stopped) return;
      // The comment finds out who has gone.
      const std::string head =
          message.json == nullptr
              ? ": nothing new\n\n"
              : absl::StrCat("id: ", boot_, ".", message.tick, "\ndata: ");
      if (!Write(connection, head)) return;
      seen = message.tick;
      if (message.json == nullptr) continue;
      if (!Write(connection, *message.json) || !Write(connection, "\n\n")) {
        return;
      }
    }
  }

  // The tick in an id of this process; 0: it is of none.
  uint64_t LastSeen(absl::string_view id) const {
    uint64_t tick = 0;
    if (!absl::ConsumePrefix(&id, boot_) || !absl::ConsumePrefix(&id, ".")) {
      return 0;
    }
    const auto [end, error] =
        std::from_chars(id.data(), id.data() + id.size(), tick);
    return error == std::errc() && end == id.data() + id.size() ? tick : 0;
  }

  const std::string token_file_;
  base::HttpServer* const http_;
  PageBoard* const board_;
  const PageServer::Refused refused_;
  const std::string boot_;  // Tells ids of this process from another's.
  const int max_viewers_;
  base::Mutex mu_;
  base::ConnectionPlaces places_ ABSL_GUARDED_BY(mu_);
  std::map<base::ConnectionPlaces::Place, Viewer*> viewers_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(Options options,
                                                              PageBoard* board,
                                                              Refused refused) {
  const int connections = options.max_viewers + kThreadsForTheRest;
  ASSIGN_OR_RETURN(
      std::unique_ptr<base::HttpServer> http,
      base::HttpServer::Start({.setting = "--listen-page",
                               .listen = options.listen,
                               .access = options.access,
                               .threads = connections,
                               .front = {.connections = connections}}));
  http->Add("/", std::make_unique<Handler>(options, http.get(), board,
                                           std::move(refused)));
  return std::unique_ptr<PageServer>(new PageServer(std::move(http)));
}

}  // namespace pactrain::coordinator
