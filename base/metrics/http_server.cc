#include "base/metrics/http_server.h"

#include <exception>
#include <utility>

#include "CivetServer.h"
#include "absl/strings/str_cat.h"
#include "base/metrics/bearer_token.h"
#include "base/status_macros.h"

namespace pactrain::base {

absl::StatusOr<HostPort> CheckReadersAddress(const std::string& listen_name,
                                             const std::string& listen,
                                             const std::string& token_name,
                                             Protection without_token,
                                             const ReadersAccess& access,
                                             bool insecure) {
  Protection protection = without_token;
  if (!access.token_file.empty()) {
    RETURN_IF_ERROR(ReadToken(token_name, access.token_file).status());
    protection = access.tls.given() ? Protection::kTls : Protection::kTlsNotYet;
  }
  return CheckListenAddress(listen_name, listen, protection, insecure);
}

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Options& options) {
  HostPort listen = options.listen;
  if (listen.host == "localhost") listen.host = "127.0.0.1";
  const HostPort behind = {"127.0.0.1", 0};
  const absl::Status cannot = absl::UnavailableError(absl::StrCat(
      options.setting, ": cannot listen on ", listen.ToString(),
      ": the port is taken or the address is not this machine's; give another "
      "one, or port 0 for any free one"));
  std::unique_ptr<HttpServer> server(new HttpServer());
  try {
    server->server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", behind.ToString(), "num_threads",
        absl::StrCat(options.threads), "request_timeout_ms", "5000",
        "access_control_allow_origin", ""});
  } catch (const std::exception&) {
    return cannot;  // The library says no more than that it could not start.
  }
  const std::vector<int> ports = server->server_->getListeningPorts();
  if (ports.empty()) return cannot;
  server->address_ = {behind.host, static_cast<uint16_t>(ports.front())};
  const TlsFiles tls =
      options.access.speaks_tls() ? options.access.tls : TlsFiles();
  auto front = HttpFront::Start(listen, tls, server->address_, options.front);
  if (absl::IsUnavailable(front.status())) return cannot;
  RETURN_IF_ERROR(front.status());
  server->front_ = *std::move(front);
  server->address_ = server->front_->address();
  return server;
}

void HttpServer::Add(const std::string& path,
                     std::unique_ptr<CivetHandler> handler) {
  handlers_.push_back(std::move(handler));
  server_->addHandler(path, *handlers_.back());
}

HttpFront::Client HttpServer::ClientOf(const mg_connection* connection) const {
  const mg_request_info* info = mg_get_request_info(connection);
  return front_->ClientOf(static_cast<uint16_t>(info->remote_port));
}

void HttpServer::Keep(ConnectionPlaces::Place place) { front_->Keep(place); }

void HttpServer::Close(ConnectionPlaces::Place place) { front_->Close(place); }

}  // namespace pactrain::base
