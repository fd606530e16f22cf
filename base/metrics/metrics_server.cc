#include "base/metrics/metrics_server.h"

#include <sstream>

#include "CivetServer.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics/bearer_token.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "base/status_macros.h"
#include "prometheus/text_serializer.h"

namespace pactrain::base {
namespace {

// Says it to the log as well, each thing once in a while.
MetricsServer::OnRefused Logged(MetricsServer::OnRefused on_refused) {
  struct Told {
    Mutex mu;
    RepeatFilter filter;
  };
  return [told = std::make_shared<Told>(), on_refused = std::move(on_refused)](
             const std::string& source, const std::string& path,
             absl::string_view why) {
    const std::string text =
        absl::StrCat("refused ", path, " to ", source, ": ", why);
    {
      MutexLock lock(&told->mu);
      if (told->filter.IsNews(text, MonotonicNow())) LOG_WARN("{}", text);
    }
    if (on_refused) on_refused(source, path, why);
  };
}

class PageHandler : public CivetHandler {
 public:
  PageHandler(std::string path, MetricsServer::Page page,
              std::string token_file, MetricsServer::OnRefused on_refused,
              const HttpServer* http)
      : path_(std::move(path)),
        page_(std::move(page)),
        token_file_(std::move(token_file)),
        on_refused_(std::move(on_refused)),
        http_(http) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (!token_file_.empty()) {
      const absl::Status shown =
          CheckBearer(token_file_, mg_get_header(connection, "Authorization"));
      if (!shown.ok()) {
        on_refused_(http_->ClientOf(connection).source, path_, shown.message());
        Answer(connection, "401 Unauthorized\r\nWWW-Authenticate: Bearer",
               "text/plain", "a bearer token is needed\n");
        return true;
      }
    }
    Answer(connection, "200 OK", page_.content_type, page_.body());
    return true;
  }

 private:
  static void Answer(mg_connection* connection, absl::string_view status,
                     absl::string_view type, const std::string& body) {
    const std::string head = absl::StrCat(
        "HTTP/1.1 ", status, "\r\nContent-Type: ", type,
        "\r\nContent-Length: ", body.size(),
        "\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
  }

  const std::string path_;
  const MetricsServer::Page page_;
  const std::string token_file_;
  const MetricsServer::OnRefused on_refused_;
  const HttpServer* const http_;
};

std::string TextOf(const prometheus::Collectable& metrics) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, metrics.Collect());
  return text.str();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    HostPort listen, std::shared_ptr<prometheus::Collectable> metrics,
    Pages more, const ReadersAccess& access, OnRefused on_refused) {
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> http,
                   HttpServer::Start({.setting = "--listen-metrics",
                                      .listen = std::move(listen),
                                      .access = access}));
  on_refused = Logged(std::move(on_refused));
  more["/metrics"] = {
      "text/plain; version=0.0.4; charset=utf-8",
      [metrics = std::move(metrics)] { return TextOf(*metrics); }};
  // An orchestrator's probe has no token.
  http->Add("/healthz$",
            std::make_unique<PageHandler>(
                "/healthz", Page{"text/plain", [] { return "ok\n"; }}, "",
                on_refused, http.get()));
  for (auto& [path, page] : more) {
    // "$": the path itself, and nothing below it.
    http->Add(
        absl::StrCat(path, "$"),
        std::make_unique<PageHandler>(path, std::move(page), access.token_file,
                                      on_refused, http.get()));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(http)));
}

}  // namespace pactrain::base
