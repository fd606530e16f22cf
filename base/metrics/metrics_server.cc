#include "base/metrics/metrics_server.h"

#include <exception>
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

constexpr const char* kTimeoutMs = "5000";

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
  // `front`: through which all come; null: there is none.
  PageHandler(std::string path, MetricsServer::Page page,
              MetricsServer::Access access, const TlsFront* front)
      : path_(std::move(path)),
        page_(std::move(page)),
        access_(std::move(access)),
        front_(front) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    if (!access_.token_file.empty()) {
      const absl::Status shown = CheckBearer(
          access_.token_file, mg_get_header(connection, "Authorization"));
      if (!shown.ok()) {
        access_.on_refused(SourceOf(connection), path_, shown.message());
        Answer(connection, "401 Unauthorized\r\nWWW-Authenticate: Bearer",
               "text/plain", "a bearer token is needed\n");
        return true;
      }
    }
    Answer(connection, "200 OK", page_.content_type, page_.body());
    return true;
  }

 private:
  std::string SourceOf(const mg_connection* connection) const {
    const mg_request_info* info = mg_get_request_info(connection);
    if (front_ == nullptr) return info->remote_addr;
    return front_->SourceOf(static_cast<uint16_t>(info->remote_port));
  }
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
  const MetricsServer::Access access_;
  const TlsFront* const front_;
};

std::string TextOf(const prometheus::Collectable& metrics) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, metrics.Collect());
  return text.str();
}

}  // namespace

MetricsServer::MetricsServer() = default;
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    HostPort listen, std::shared_ptr<prometheus::Collectable> metrics,
    Pages more, Access access) {
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  const bool tls = !access.token_file.empty() && access.tls.given();
  const HostPort behind = tls ? HostPort{"127.0.0.1", 0} : listen;
  const absl::Status cannot = absl::UnavailableError(absl::StrCat(
      "--listen-metrics: cannot listen on ", listen.ToString(),
      ": the port is taken or the address is not this machine's; give another "
      "one, or port 0 for any free one"));
  access.on_refused = Logged(std::move(access.on_refused));
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  try {
    server->server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", behind.ToString(), "num_threads", "4",
        "request_timeout_ms", kTimeoutMs});
  } catch (const std::exception&) {
    return cannot;  // The library says no more than that it could not start.
  }
  const std::vector<int> ports = server->server_->getListeningPorts();
  if (ports.empty()) return cannot;
  const HostPort bound = {behind.host, static_cast<uint16_t>(ports.front())};
  server->address_ = bound;
  if (tls) {
    auto front = TlsFront::Start(listen, access.tls, bound, {});
    if (absl::IsUnavailable(front.status())) return cannot;
    RETURN_IF_ERROR(front.status());
    server->front_ = *std::move(front);
    server->address_ = server->front_->address();
  }
  more["/metrics"] = {
      "text/plain; version=0.0.4; charset=utf-8",
      [metrics = std::move(metrics)] { return TextOf(*metrics); }};
  for (auto& [path, page] : more) {
    // "$": the path itself, and nothing below it.
    server->handlers_.push_back(std::make_unique<PageHandler>(
        path, std::move(page), access, server->front_.get()));
    server->server_->addHandler(absl::StrCat(path, "$"),
                                *server->handlers_.back());
  }
  return server;
}

}  // namespace pactrain::base
