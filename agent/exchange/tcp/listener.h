// The port that other agents dial. Holds as many connections as its limits
// allow, in all, of strangers and from one source. Beyond them a stranger gives
// way to the newcomer, or, if there is none, the newcomer is closed before a
// byte is read (ConnectionPlaces).
//
// Not thread-safe: everything runs on the io_context's one thread, and the
// listener is destroyed there.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_LISTENER_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_LISTENER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/steady_timer.hpp"
#include "base/connection_caps.h"
#include "base/connection_places.h"
#include "base/while_here.h"

namespace pactrain::agent {

// Called from the listener's handlers, never from within a call of its methods.
class ListenerOwner {
 public:
  virtual ~ListenerOwner() = default;
  // Of a connection that has this place until Release(), or gives way.
  virtual void OnAccepted(asio::ip::tcp::socket socket,
                          base::ConnectionPlaces::Place place) = 0;
  // One has lost its place and is to be closed.
  virtual void OnGaveWay(const base::ConnectionPlaces::GaveWay& gave_way) = 0;
  // One was closed, or, with kDescriptors and no source, could not be accepted.
  virtual void OnNotAccepted(base::Refusal refusal, const std::string& source,
                             const std::string& why) = 0;
};

class Listener {
 public:
  // `address`: "host:port" or "host:first-last", with a numeric host: the first
  // port that is free is taken. `owner` must outlive the listener.
  //   InvalidArgument: the address is none.
  //   Unavailable:     it cannot be listened on, at no port of the range.
  static absl::StatusOr<std::unique_ptr<Listener>> Start(
      asio::io_context& io, const std::string& address,
      const base::ConnectionPlaces::Limits& limits, ListenerOwner* owner);

  // "127.0.0.1:4711", with the port that was taken.
  std::string address() const;

  // As of ConnectionPlaces.
  void Prove(base::ConnectionPlaces::Place place) { places_.Prove(place); }
  void Release(base::ConnectionPlaces::Place place) { places_.Release(place); }

 private:
  Listener(asio::io_context& io, const base::ConnectionPlaces::Limits& limits,
           ListenerOwner* owner)
      : acceptor_(io), accept_timer_(io), places_(limits), owner_(owner) {}
  absl::Status Listen(const std::string& address);
  asio::error_code ListenAt(const asio::ip::tcp::endpoint& endpoint);
  void AcceptNext();
  void Admit(asio::ip::tcp::socket socket);

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  base::ConnectionPlaces places_;
  ListenerOwner* const owner_;
  base::WhileHere here_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_LISTENER_H_
