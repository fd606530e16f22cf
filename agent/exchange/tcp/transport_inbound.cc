// Connections that others opened: their places, and who is refused.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "agent/exchange/tcp/transport.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace pactrain::agent {

void Transport::OnAccepted(asio::ip::tcp::socket socket,
                           base::ConnectionPlaces::Place place) {
  const auto connection = NewConnection(std::move(socket));
  inbound_[connection.get()] = place;
  handshakes_[connection] = Handshake{};
  connection->Start(TlsStream::Side::kServer);
}

void Transport::OnGaveWay(const base::ConnectionPlaces::GaveWay& gave_way) {
  const auto it = std::find_if(
      handshakes_.begin(), handshakes_.end(), [&](const auto& handshake) {
        const auto inbound = inbound_.find(handshake.first.get());
        return inbound != inbound_.end() && inbound->second == gave_way.place;
      });
  PT_CHECK(it != handshakes_.end());
  // Out of the maps first: OnClosed() would count it as a failed handshake.
  const std::shared_ptr<Connection> connection = it->first;
  inbound_.erase(connection.get());
  handshakes_.erase(it);
  connection->Close(absl::ResourceExhaustedError(gave_way.why));
  OnNotAccepted(gave_way.limit, gave_way.source, gave_way.why);
}

void Transport::OnNotAccepted(base::Refusal refusal, const std::string& source,
                              const std::string& why) {
  refused_.Add(refusal);
  if (!told_.IsNews(source + why, base::MonotonicNow())) return;
  if (source.empty()) {
    LOG_WARN("accepting a data connection failed: {}", why);
  } else {
    LOG_WARN("data connection from {} refused: {}", source, why);
  }
}

void Transport::Prove(const Connection& connection) {
  const auto it = inbound_.find(&connection);
  if (it != inbound_.end()) listener_->Prove(it->second);
}

void Transport::ForgetInbound(const Connection& connection) {
  const auto it = inbound_.find(&connection);
  if (it == inbound_.end()) return;
  listener_->Release(it->second);
  inbound_.erase(it);
}

void Transport::RefuseStranger(Connection& connection,
                               const absl::Status& why) {
  refused_.Add(base::Refusal::kKey);
  if (told_.IsNews(absl::StrCat("key ", connection.agent()),
                   base::MonotonicNow())) {
    LOG_WARN("data connection with {} refused: {}", connection.remote(),
             std::string(why.message()));
  }
  connection.Close(why);
}

void Transport::LogRefusal(const Connection& connection,
                           const std::string& dialled,
                           const absl::Status& why) {
  const std::string text(why.message());
  // The port differs at each try.
  const std::string& remote = connection.remote();
  const std::string host = remote.substr(0, remote.rfind(':'));
  const bool accident = absl::IsUnavailable(why) || absl::IsCancelled(why);
  if (tls_ != nullptr && !accident &&
      told_.IsNews(absl::StrCat(host, " ", dialled, " ", why.code(),
                                absl::StrReplaceAll(text, {{remote, host}})),
                   base::MonotonicNow())) {
    LOG_WARN("data connection {} refused: {}",
             dialled.empty() ? "from " + remote : "to agent " + dialled, text);
  } else {
    LOG_DEBUG("handshake with {} failed: {}", remote, text);
  }
}

}  // namespace pactrain::agent
