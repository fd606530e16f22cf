// The way to a connection that this end dials: tries, pauses, giving up.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/exchange/tcp/transport.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/net.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

}  // namespace

std::shared_ptr<Transport::Attempt> Transport::NewAttempt() {
  auto attempt = std::make_shared<Attempt>(io_);
  attempt->timer.expires_after(
      absl::ToChronoNanoseconds(options_.connection.handshake));
  attempt->timer.async_wait([attempt](const asio::error_code& error) {
    if (error) return;
    asio::error_code ignored;
    attempt->timed_out = true;
    attempt->socket.close(ignored);
  });
  return attempt;
}

void Transport::Attempt::GiveUp() {
  given_up = true;
  timer.cancel();
  asio::error_code ignored;
  socket.close(ignored);
}

void Transport::Dial(PeerState& state) {
  if (state.connection != nullptr || state.attempt != nullptr ||
      state.dial != nullptr || state.peer.address == protocol::kNobodyDials) {
    return;
  }
  const std::string agent = state.peer.agent;
  const auto address = base::ParseHostPort(state.peer.address);
  if (!address.ok()) {
    LOG_WARN("agent {} cannot be reached: {}", agent,
             std::string(address.status().message()));
    return;
  }
  const auto attempt = NewAttempt();
  state.attempt = attempt;
  auto done = [this, agent, attempt](const asio::error_code& error) {
    if (attempt->given_up) return;
    attempt->timer.cancel();
    OnDialled(agent, attempt, error);
  };
  resolver_.async_resolve(
      address->host, absl::StrCat(address->port),
      [attempt, done](const asio::error_code& error,
                      const tcp::resolver::results_type& endpoints) {
        if (error || attempt->given_up) return done(error);
        if (attempt->timed_out) return done(asio::error::timed_out);
        attempt->socket.async_connect(endpoints.begin()->endpoint(), done);
      });
}

void Transport::OnDialled(const std::string& agent,
                          const std::shared_ptr<Attempt>& attempt,
                          const asio::error_code& error) {
  PeerState* state = Find(agent);
  if (state == nullptr || state->attempt != attempt) return;
  state->attempt = nullptr;
  if (error) {
    const std::string why = attempt->timed_out ? "no answer" : error.message();
    if (told_.IsNews(absl::StrCat("dial ", agent, " ", why),
                     base::MonotonicNow())) {
      LOG_INFO("agent {} cannot be dialled at {}: {}; trying on{}", agent,
               state->peer.address, why,
               options_.nobody_dials ? "" : ", and it may dial this one");
    }
    return RedialLater(*state);
  }
  const auto connection = NewConnection(std::move(attempt->socket));
  handshakes_[connection] = Handshake{.dialled_agent = agent, .hello = {}};
  state->dial = connection;
  connection->Start(TlsStream::Side::kClient);
  connection->SendHello(OwnHello(agent));
}

void Transport::RedialLater(PeerState& state) {
  // Jitter keeps the agents of a job from dialling in step.
  const double share = std::uniform_real_distribution<>(0.5, 1.0)(random_);
  state.redial_timer.expires_after(
      absl::ToChronoNanoseconds(share * state.backoff));
  state.backoff =
      std::max(state.backoff, std::min(2 * state.backoff, kMaxBackoff));
  state.redial_timer.async_wait(here_.Wrap(
      [this, agent = state.peer.agent](const asio::error_code& error) {
        if (error) return;
        if (PeerState* state = Find(agent)) Dial(*state);
      }));
}

absl::Duration Transport::FirstBackoff(const std::string& agent) const {
  return DialsFirst(agent) ? kFirstBackoff : options_.second_dial;
}

void Transport::StopDialling(PeerState& state) {
  if (const auto attempt = std::exchange(state.attempt, nullptr)) {
    attempt->GiveUp();
  }
  if (const auto dial = std::exchange(state.dial, nullptr)) {
    dial->Close(absl::CancelledError("not needed any more"));
  }
}

}  // namespace pactrain::agent
