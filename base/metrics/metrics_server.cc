#include "base/metrics/metrics_server.h"

#include <exception>
#include <sstream>

#include "CivetServer.h"
#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"

namespace pactrain::base {
namespace {

constexpr const char* kTimeoutMs = "5000";

class PageHandler : public CivetHandler {
 public:
  explicit PageHandler(MetricsServer::Page page) : page_(std::move(page)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const std::string body = page_.body();
    const std::string head = absl::StrCat(
        "HTTP/1.1 200 OK\r\nContent-Type: ", page_.content_type,
        "\r\nContent-Length: ", body.size(),
        "\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
    return true;
  }

 private:
  const MetricsServer::Page page_;
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
    Pages more) {
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  const absl::Status cannot = absl::UnavailableError(absl::StrCat(
      "--listen-metrics: cannot listen on ", listen.ToString(),
      ": the port is taken or the address is not this machine's; give another "
      "one, or port 0 for any free one"));
  std::unique_ptr<MetricsServer> server(new MetricsServer());
  try {
    server->server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", listen.ToString(), "num_threads", "4",
        "request_timeout_ms", kTimeoutMs});
  } catch (const std::exception&) {
    return cannot;  // The library says no more than that it could not start.
  }
  const std::vector<int> ports = server->server_->getListeningPorts();
  if (ports.empty()) return cannot;
  listen.port = static_cast<uint16_t>(ports.front());
  server->address_ = std::move(listen);
  more["/metrics"] = {
      "text/plain; version=0.0.4; charset=utf-8",
      [metrics = std::move(metrics)] { return TextOf(*metrics); }};
  for (auto& [path, page] : more) {
    // "$": the path itself, and nothing below it.
    server->handlers_.push_back(std::make_unique<PageHandler>(std::move(page)));
    server->server_->addHandler(absl::StrCat(path, "$"),
                                *server->handlers_.back());
  }
  return server;
}

}  // namespace pactrain::base
