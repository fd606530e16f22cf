#include "agent/exchange/tcp/flight_limit.h"

#include <algorithm>

namespace pactrain::agent {
namespace {

// So many between two updates tell of the link what pings do not.
constexpr uint64_t kTellingBytes = 64 << 10;
constexpr uint64_t kTellingOfLossBytes = 4 << 20;
// Until round trips show what a limit twice as large does.
constexpr absl::Duration kLeastDoubling = absl::Milliseconds(50);

// Whether what is on its way waits somewhere.
bool Queues(const TcpState& state) {
  return state.rtt > state.least_rtt + kTurn / 2;
}

}  // namespace

size_t InFlightBytes(double bytes_per_second, absl::Duration least_rtt,
                     size_t least) {
  const double seconds = absl::ToDoubleSeconds(2 * least_rtt + kTurn);
  return least + static_cast<size_t>(bytes_per_second * seconds);
}

bool Farness::Update(const TcpState& state) {
  const bool far = state.least_rtt >= far_rtt_;
  const uint64_t carried = state.acknowledged - acknowledged_;
  acknowledged_ = state.acknowledged;
  const bool tells = carried >= kTellingBytes && !Queues(state);
  if (!far || !far_.has_value() || tells) far_ = far;
  return *far_;
}

bool Losses::Update(const TcpState& state) {
  const double bytes = static_cast<double>(state.sent - sent_);
  if (bytes < kTellingOfLossBytes || many()) return many();
  const double share =
      static_cast<double>(state.sent_again - sent_again_) / bytes;
  const double segments =
      state.bytes_per_second * absl::ToDoubleSeconds(state.least_rtt) /
      static_cast<double>(std::max<uint64_t>(state.segment_bytes, 1));
  // Within a factor of two of what the losses allow.
  stretches_ = share * segments * segments > 1.5 / 4 ? stretches_ + 1 : 0;
  sent_ = state.sent;
  sent_again_ = state.sent_again;
  return many();
}

void Losses::Restart(const TcpState& state) {
  sent_ = state.sent;
  sent_again_ = state.sent_again;
  stretches_ = 0;
}

void FlightLimit::Update(const TcpState& state, double share) {
  const bool far = farness_.Update(state);
  if (far) {
    losses_.Update(state);
  } else {
    losses_.Restart(state);
  }
  double rate = state.bytes_per_second;
  size_t least = kLeastInFlightBytes;
  if (share > 0 && !far) {
    // A site that takes much less than the others gets no long queue.
    rate = rate > 0 ? std::min(share, 2 * rate) : share;
    least = kLeastSharedBytes;
  }
  // Of a near one more is the queue in front of its link: see Farness.
  const absl::Duration least_rtt =
      far ? state.least_rtt : std::min(state.least_rtt, farness_.far_rtt());
  const size_t by_rate = InFlightBytes(rate, least_rtt, least);
  // What was doubled stays until a queue shows.
  const bool keeps = far && !Queues(state);
  bytes_ = keeps ? std::max(bytes_, by_rate) : by_rate;
}

bool FlightLimit::MayDouble(absl::Duration now) const {
  return is_far() && now - doubled_ >= kLeastDoubling;
}

bool FlightLimit::Double(const TcpState& state, absl::Duration now) {
  if (!MayDouble(now) || now - doubled_ < 2 * state.rtt || Queues(state)) {
    return false;
  }
  doubled_ = now;
  bytes_ *= 2;
  return true;
}

}  // namespace pactrain::agent
