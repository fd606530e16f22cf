// Carries the packets of emulated links with a delay: the kernel's netem, which
// many machines lack.
//
// delay_relay FIFO A-B...: run in the namespace of the switches. A and B are
// TAP devices, the two ends of a link: what the kernel sends into one comes out
// of the other after the delay of the moment, in order. A line in FIFO sets it
// for all links, in milliseconds one way, and the share of the larger pieces
// (not of bare acknowledgements) that are lost by chance; it starts with none.
//
// Pieces of up to 64 kB pass whole, as between network cards that cut and join
// packets. What comes while a direction is full stays in the device's queue.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "bench/delay_line.h"

namespace pactrain::bench {
namespace {

constexpr size_t kMostBytes = 64 << 20;
constexpr size_t kLargestPiece = 68 << 10;  // With its headers.
constexpr ssize_t kMostBare = 200;  // Of headers alone: acknowledgements.
// Of one direction before the others have their turn.
constexpr int kAtOnce = 16;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "delay_relay: %s: %s\n", what.c_str(),
               std::strerror(errno));
  std::exit(1);
}

// Reads and writes whole pieces, each after its virtio_net_hdr.
int OpenTap(absl::string_view name) {
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) Die("/dev/net/tun");
  ifreq request = {};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tap, TUNSETIFF, &request) != 0) Die(std::string(name));
  const unsigned offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
  if (ioctl(tap, TUNSETOFFLOAD, offload) != 0) Die("TUNSETOFFLOAD");
  return tap;
}

struct Direction {
  int from;
  int to;
  DelayLine line = DelayLine(kMostBytes);
  // The same share of each, run by run.
  std::minstd_rand random = std::minstd_rand();
};

class Relay {
 public:
  explicit Relay(int control) : control_(control) {}

  void Add(int a, int b) {
    directions_.push_back({a, b});
    directions_.push_back({b, a});
  }

  // Once: waits for the next thing to do and does all that can be done then.
  void Turn() {
    std::vector<pollfd> polled = {{control_, POLLIN, 0}};
    absl::Duration due = absl::InfiniteDuration();
    for (const Direction& d : directions_) {
      // A negative descriptor is not looked at.
      polled.push_back({d.line.full() ? -1 : d.from, POLLIN, 0});
      due = std::min(due, d.line.due());
    }
    const absl::Duration wait =
        std::max(absl::ZeroDuration(), due - base::MonotonicNow());
    const timespec timeout = absl::ToTimespec(wait);
    const bool endless = due == absl::InfiniteDuration();
    if (ppoll(polled.data(), polled.size(), endless ? nullptr : &timeout,
              nullptr) < 0 &&
        errno != EINTR) {
      Die("ppoll");
    }
    if ((polled[0].revents & POLLIN) != 0) ReadControl();
    for (size_t i = 0; i < directions_.size(); ++i) {
      if ((polled[i + 1].revents & POLLIN) != 0) Receive(directions_[i]);
    }
    for (Direction& d : directions_) Send(d);
  }

 private:
  void ReadControl() {
    const ssize_t bytes = read(control_, buffer_.data(), buffer_.size());
    if (bytes <= 0) return;
    const std::vector<absl::string_view> lines = absl::StrSplit(
        absl::string_view(buffer_.data(), static_cast<size_t>(bytes)), '\n',
        absl::SkipWhitespace());
    if (lines.empty()) Die("no line came");
    const std::pair<absl::string_view, absl::string_view> line =
        absl::StrSplit(lines.back(), absl::MaxSplits(' ', 1));
    double milliseconds = 0;
    if (!absl::SimpleAtod(line.first, &milliseconds) ||
        !absl::SimpleAtod(line.second, &lost_share_)) {
      Die("no milliseconds and share came");
    }
    delay_ = absl::Milliseconds(milliseconds);
  }

  void Receive(Direction& d) {
    for (int i = 0; i < kAtOnce; ++i) {
      const ssize_t bytes = read(d.from, buffer_.data(), buffer_.size());
      if (bytes <= 0) return;
      if (lost_share_ > 0 && bytes > kMostBare &&
          uniform_(d.random) < lost_share_) {
        continue;
      }
      d.line.Put(base::MonotonicNow(), delay_,
                 std::string(buffer_.data(), static_cast<size_t>(bytes)));
    }
  }

  static void Send(Direction& d) {
    const absl::Duration now = base::MonotonicNow();
    while (const auto piece = d.line.Take(now)) {
      if (write(d.to, piece->data(), piece->size()) < 0) Die("a lost piece");
    }
  }

  const int control_;
  absl::Duration delay_;
  double lost_share_ = 0;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Direction> directions_;
  std::array<char, kLargestPiece> buffer_;
};

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "delay_relay FIFO A-B...\n");
    return 2;
  }
  // Opened for writing, too: so it never ends.
  const int control = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (control < 0) Die(argv[1]);
  // The programs under test fill all cores: a late relay would be a longer
  // link. Without the right to it the relay runs as they do.
  const sched_param first = {.sched_priority = 1};
  sched_setscheduler(0, SCHED_FIFO, &first);
  Relay relay(control);
  for (int i = 2; i < argc; ++i) {
    const std::vector<std::string> ends = absl::StrSplit(argv[i], '-');
    if (ends.size() != 2) {
      std::fprintf(stderr, "delay_relay: '%s', allowed: A-B\n", argv[i]);
      return 2;
    }
    relay.Add(OpenTap(ends[0]), OpenTap(ends[1]));
  }
  std::printf("carrying\n");
  std::fflush(stdout);
  while (true) relay.Turn();
}

}  // namespace
}  // namespace pactrain::bench

int main(int argc, char** argv) { return pactrain::bench::Main(argc, argv); }
