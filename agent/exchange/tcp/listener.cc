#include "agent/exchange/tcp/listener.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/net.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;

// Without a free descriptor: until the next try.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start(
    asio::io_context& io, const std::string& address,
    const base::ConnectionPlaces::Limits& limits, ListenerOwner* owner) {
  auto listener = std::unique_ptr<Listener>(new Listener(io, limits, owner));
  RETURN_IF_ERROR(listener->Listen(address));
  listener->AcceptNext();
  return listener;
}

absl::Status Listener::Listen(const std::string& address) {
  ASSIGN_OR_RETURN(const base::PortRange range, base::ParsePortRange(address));
  asio::error_code error;
  const auto host = asio::ip::make_address(
      range.host == "localhost" ? "127.0.0.1" : range.host, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen address '", address,
                     "': the host is not a numeric IP address"));
  }
  for (int port = range.first; port <= range.last; ++port) {
    error = ListenAt({host, static_cast<uint16_t>(port)});
    if (error != asio::error::address_in_use) break;
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "--listen: cannot listen on ", address, ": ",
      range.first == range.last ? error.message() : "none of its ports is free",
      "; give another one, a range of ports, or port 0 for any free one"));
}

asio::error_code Listener::ListenAt(const tcp::endpoint& endpoint) {
  asio::error_code error;
  if (acceptor_.is_open()) acceptor_.close(error);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) {
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
  }
  return error;
}

std::string Listener::address() const {
  asio::error_code ignored;
  const tcp::endpoint endpoint = acceptor_.local_endpoint(ignored);
  return base::HostPort{endpoint.address().to_string(), endpoint.port()}
      .ToString();
}

void Listener::AcceptNext() {
  acceptor_.async_accept(
      here_.Wrap([this](const asio::error_code& error, tcp::socket socket) {
        if (error == asio::error::operation_aborted) return;
        if (!error) {
          Admit(std::move(socket));
          return AcceptNext();
        }
        owner_->OnNotAccepted(base::Refusal::kDescriptors, "", error.message());
        accept_timer_.expires_after(kAcceptPause);
        accept_timer_.async_wait(
            here_.Wrap([this](const asio::error_code& stopped) {
              if (!stopped) AcceptNext();
            }));
      }));
}

void Listener::Admit(tcp::socket socket) {
  asio::error_code gone;
  const tcp::endpoint remote = socket.remote_endpoint(gone);
  if (gone) return;
  const std::string source = base::SourceOf(remote.data());
  base::Refusal limit = {};
  const auto admission = places_.Admit(source, &limit);
  if (!admission.ok()) {  // The socket is closed here.
    return owner_->OnNotAccepted(limit, source,
                                 std::string(admission.status().message()));
  }
  if (admission->gave_way) owner_->OnGaveWay(*admission->gave_way);
  owner_->OnAccepted(std::move(socket), admission->place);
}

}  // namespace pactrain::agent
