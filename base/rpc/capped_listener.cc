#include "base/rpc/capped_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rpc/stream_counts.h"
#include "base/status_macros.h"

namespace pactrain::base {
namespace {

// Without a free descriptor: until the next try.
constexpr int kPauseMs = 100;

absl::Status SystemError() {
  return absl::UnavailableError(std::strerror(errno));
}

// The bytes of a numeric address; "localhost" is 127.0.0.1.
absl::StatusOr<std::pair<sockaddr_storage, socklen_t>> AddressOf(
    const HostPort& wanted) {
  sockaddr_storage storage = {};
  const std::string host =
      wanted.host == "localhost" ? "127.0.0.1" : wanted.host;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(wanted.port);
    return std::pair(storage, socklen_t{sizeof *v4});
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(wanted.port);
    return std::pair(storage, socklen_t{sizeof *v6});
  }
  return absl::UnavailableError("the host is not a numeric IP address");
}

void SetOption(int fd, int level, int name, int value) {
  PT_CHECK(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

// Both sides are done with it, or one has reset it.
bool IsClosed(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         info.tcpi_state == TCP_CLOSE;
}

// Also takes from whoever reads it what it has not read yet: a shutdown alone
// would leave that.
void Abort(int fd) {
  sockaddr none = {};
  none.sa_family = AF_UNSPEC;
  connect(fd, &none, sizeof none);
  shutdown(fd, SHUT_RDWR);
}

// A name counts once for each job key: whoever holds another one can make
// certificates of all names, and uses up nobody's turns but those.
std::string WhoIs(const CertificateFacts& facts) {
  return absl::StrCat(absl::StrJoin(facts.uris, " "),
                      facts.issuer.empty() ? "" : " of job key ", facts.issuer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CappedListener>> CappedListener::Open(
    const HostPort& listen, Options options) {
  std::unique_ptr<CappedListener> listener(
      new CappedListener(std::move(options)));
  RETURN_IF_ERROR(listener->Listen(listen));
  return listener;
}

CappedListener::CappedListener(Options options)
    : tls_(options.tls),
      open_limits_(options.open),
      stays_(std::move(options.stays)),
      stays_version_(std::move(options.stays_version)),
      maker_(std::move(options.maker)),
      on_refused_(std::move(options.on_refused)),
      meter_(StreamsOf),
      connections_(std::move(options.connections)),
      calls_(std::move(options.calls)),
      bytes_(std::move(options.bytes)),
      // All may be strangers.
      places_({options.limits, options.limits.total}),
      handshakes_(
          {options.handshake_limit, std::move(options.check),
           [this](ConnectionPlaces::Place place, CertificateFacts facts) {
             OnProven(place, std::move(facts));
           },
           [this](const CertificateFacts& facts) { OnKeyUpdate(facts); },
           [this](const std::string& source, const std::string& why) {
             Refuse(source, Refusal::kHandshake,
                    absl::UnauthenticatedError(
                        absl::StrCat("TLS handshake: ", why)));
           }}) {}

absl::Status CappedListener::Listen(const HostPort& wanted) {
  ASSIGN_OR_RETURN(auto address, AddressOf(wanted));
  auto* const bytes = reinterpret_cast<sockaddr*>(&address.first);
  listener_ = socket(bytes->sa_family,
                     SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener_ < 0 || epoll_ < 0 || wake_ < 0) return SystemError();
  SetOption(listener_, SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted sockets have it from here.
  SetOption(listener_, IPPROTO_TCP, TCP_NODELAY, 1);
  if (bytes->sa_family == AF_INET6) {
    SetOption(listener_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(listener_, bytes, address.second) != 0 ||
      listen(listener_, SOMAXCONN) != 0) {
    return SystemError();
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  PT_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size) ==
           0);
  // The port lies at the same place in both families.
  address_ = {wanted.host,
              ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port)};
  return absl::OkStatus();
}

CappedListener::~CappedListener() {
  Stop();
  for (int fd : {listener_, epoll_, wake_}) {
    if (fd >= 0) close(fd);
  }
}

void CappedListener::Start(std::unique_ptr<Acceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  for (int fd : {listener_, wake_}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    PT_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  thread_ = std::thread([this] { Loop(); });
}

void CappedListener::Stop() {
  handshakes_.Stop();
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
  // Who still waits in the queue is hung up on.
  close(std::exchange(listener_, -1));
  std::vector<int> open;
  {
    MutexLock lock(&mu_);
    for (const auto& [watched, of] : watched_) open.push_back(watched);
  }
  for (int watched : open) Forget(watched);
}

void CappedListener::OnProven(ConnectionPlaces::Place place,
                              CertificateFacts facts) {
  std::string source;
  absl::Status may_open;
  {
    MutexLock lock(&mu_);
    places_.Prove(place);
    const auto it = proven_.find(place);
    if (it != proven_.end()) {  // Else it is gone by now, and counts.
      it->second.facts = std::make_shared<const CertificateFacts>(facts);
      it->second.who = WhoIs(facts);
      it->second.maker = maker_(facts);
      source = it->second.source;
      may_open = CheckOpen(it->second);
      if (!may_open.ok()) End(place, /*at_once=*/true);
    }
  }
  if (!may_open.ok()) return Refuse(source, Refusal::kBudget, may_open, &facts);
  if (Take(&CappedListener::connections_, facts).ok()) {
    Take(&CappedListener::bytes_, facts, 0).IgnoreError();
  }
}

absl::Status CappedListener::CheckOpen(const Proven& proven) const {
  int own = 0, made = 0;
  for (const auto& [place, other] : proven_) {
    own += other.who == proven.who;
    made += other.maker == proven.maker;
  }
  // Not how many there are: each number would be another line of the log.
  if (own > open_limits_.of_identity) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "as many connections of this identity are open as may be: ",
        open_limits_.of_identity, ". End one, or use another certificate"));
  }
  if (!proven.maker.empty() && made > open_limits_.of_maker) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "as many connections of ", proven.maker,
        " are open as may be: ", open_limits_.of_maker, ". End one"));
  }
  return absl::OkStatus();
}

void CappedListener::OnKeyUpdate(const CertificateFacts& facts) {
  Take(&CappedListener::bytes_, facts, kBytesOfKeyUpdate).IgnoreError();
}

absl::Status CappedListener::TakeCall(const CertificateFacts& facts) {
  return Take(&CappedListener::calls_, facts);
}

absl::Status CappedListener::TakeMessage(const CertificateFacts& facts) {
  return Take(&CappedListener::bytes_, facts, kBytesOfMessage);
}

CappedListener::Budgets::Budgets(IdentityBudgets::Limits limits)
    : own(limits),
      makers({.of = limits.of,
              .whose = "all that one job key has made",
              .at_once = kIdentities * limits.at_once,
              .per_second = kIdentities * limits.per_second,
              .shut_out = limits.shut_out}) {}

absl::Status CappedListener::Take(Budgets CappedListener::*budgets,
                                  const CertificateFacts& facts,
                                  uint64_t turns) {
  std::string who = WhoIs(facts);
  const std::string maker = maker_(facts);
  absl::Status taken;
  std::string source = "an address that is gone";
  {
    MutexLock lock(&mu_);
    bool news = false;
    taken = (this->*budgets).own.Take(who, MonotonicNow(), &news, turns);
    const bool of_all = taken.ok() && !maker.empty();
    if (of_all) {
      taken = (this->*budgets).makers.Take(maker, MonotonicNow(), &news, turns);
      who = maker;
    }
    if (taken.ok()) return taken;
    for (const auto& [place, proven] : proven_) {
      if (proven.facts == nullptr) continue;
      if ((of_all ? proven.maker : proven.who) != who) continue;
      source = proven.source;
      End(place, /*at_once=*/true);
    }
    if (news) refused_.Add(Refusal::kBudget);
    if (!news) return taken;
  }
  on_refused_(source, &facts, taken);
  return taken;
}

void CappedListener::Loop() {
  bool paused = false;
  absl::Duration looked = MonotonicNow();
  while (true) {
    const absl::Duration left = looked + kLookEvery - MonotonicNow();
    const int look_ms = static_cast<int>(
        absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration())) + 1);
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, std::size(events),
                                 paused ? kPauseMs
                                 : tls_ ? look_ms
                                        : -1);
    if (tls_ && MonotonicNow() - looked >= kLookEvery) {
      looked = MonotonicNow();
      LookAtOpen();
      CountBytes();
    }
    // While paused only the end of connections is told, which makes room.
    if (paused) Listening(true);
    paused = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_) return;
      if (fd != listener_) {
        Forget(fd);
      } else if (!AcceptOne()) {
        paused = true;
      }
    }
    if (paused) Listening(false);
  }
}

void CappedListener::Listening(bool on) {
  epoll_event event = {.events = on ? uint32_t{EPOLLIN} : 0u,
                       .data = {.fd = listener_}};
  PT_CHECK(epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event) == 0);
}

bool CappedListener::AcceptOne() {
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&peer), &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // Somebody who has hung up already is no reason to pause.
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
        errno != ENOMEM) {
      return true;
    }
    Refuse("anybody", Refusal::kDescriptors, SystemError());
    return false;
  }
  const auto* const address = reinterpret_cast<const sockaddr*>(&peer);
  Admit(fd, SourceOf(address), PeerName(address));
  return true;
}

void CappedListener::Admit(int fd, const std::string& source,
                           const std::string& peer) {
  Refusal limit = {};
  absl::StatusOr<ConnectionPlaces::Admission> admission;
  {
    MutexLock lock(&mu_);
    admission = places_.Admit(source, &limit);
    if (admission.ok() && !tls_) places_.Prove(admission->place);
    if (admission.ok() && tls_) proven_[admission->place].source = source;
  }
  if (!admission.ok()) {
    Refuse(source, limit, admission.status());
    close(fd);
    return;
  }
  if (admission->gave_way) MakeGiveWay(*admission->gave_way);
  const int watched = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  // No events but those that cannot be left out: the end of the connection.
  epoll_event event = {.events = 0, .data = {.fd = watched}};
  if (watched < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, watched, &event) != 0) {
    const absl::Status why = SystemError();
    close(fd);
    if (watched >= 0) close(watched);
    Release(admission->place);
    return Refuse(source, Refusal::kDescriptors, why);
  }
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  {
    MutexLock lock(&mu_);
    watched_[watched] = {admission->place, ended};
  }
  meter_.Add(watched, peer);
  Acceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_;
  connection.fd = fd;
  handshakes_.Accept({source, admission->place, ended},
                     [&] { acceptor_->HandleNewConnection(&connection); });
}

void CappedListener::LookAtOpen() {
  const uint64_t version = stays_version_();
  const absl::Time now = absl::Now();
  std::map<ConnectionPlaces::Place, Proven> open;
  {
    MutexLock lock(&mu_);
    open = proven_;
    for (auto& [place, proven] : proven_) {
      if (proven.facts != nullptr) proven.version = version;
    }
  }
  for (const auto& [place, proven] : open) {
    if (proven.facts == nullptr) continue;
    absl::Status stays;
    if (proven.facts->until < now) {
      stays = absl::UnauthenticatedError(absl::StrCat(
          "the certificate of ", absl::StrJoin(proven.facts->uris, " "),
          ", or its CA's or the coordinator's, has ended"));
    } else if (proven.version != version) {
      stays = stays_(*proven.facts);
    }
    if (stays.ok()) continue;
    // Not counted: it was let in.
    on_refused_(proven.source, proven.facts.get(), stays);
    MutexLock lock(&mu_);
    End(place);
  }
}

void CappedListener::CountBytes(std::optional<int> only) {
  std::map<int, std::shared_ptr<const CertificateFacts>> whose;
  {
    MutexLock lock(&mu_);
    for (const auto& [watched, of] : watched_) {
      if (only && *only != watched) continue;
      const auto proven = proven_.find(of.place);
      if (proven == proven_.end() || proven->second.facts == nullptr) continue;
      whose[watched] = proven->second.facts;
    }
  }
  std::vector<int> proven;
  for (const auto& [watched, facts] : whose) proven.push_back(watched);
  for (const auto& [watched, bytes] : meter_.Count(proven)) {
    Take(&CappedListener::bytes_, *whose.at(watched), bytes).IgnoreError();
  }
}

void CappedListener::MakeGiveWay(const ConnectionPlaces::GaveWay& gave_way) {
  Refuse(gave_way.source, gave_way.limit,
         absl::ResourceExhaustedError(gave_way.why));
  MutexLock lock(&mu_);
  End(gave_way.place);
}

void CappedListener::End(ConnectionPlaces::Place place, bool at_once) {
  const auto it = std::find_if(
      watched_.begin(), watched_.end(),
      [&](const auto& watched) { return watched.second.place == place; });
  // It is proven before it is watched, or it was forgotten just now.
  if (it == watched_.end()) return;
  *it->second.ended = true;
  if (at_once) {
    Abort(it->first);
  } else {
    shutdown(it->first, SHUT_RDWR);
  }
}

void CappedListener::Release(ConnectionPlaces::Place place) {
  MutexLock lock(&mu_);
  places_.Release(place);
  proven_.erase(place);
}

void CappedListener::Refuse(const std::string& source, Refusal refusal,
                            const absl::Status& why,
                            const CertificateFacts* facts) {
  {
    MutexLock lock(&mu_);
    refused_.Add(refusal);
  }
  on_refused_(source, facts, why);
}

void CappedListener::Forget(int watched) {
  CountBytes(watched);
  meter_.Remove(watched);
  ConnectionPlaces::Place place = 0;
  {
    MutexLock lock(&mu_);
    place = watched_.at(watched).place;
    watched_.erase(watched);
    // It was reset: gRPC would still work on what lies there unread, and nobody
    // count it. Else what gRPC has said last is still to get there.
    if (IsClosed(watched)) Abort(watched);
    // Closing alone would not do while gRPC still has its own.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, watched, nullptr);
    close(watched);
  }
  Release(place);
}

std::vector<CertificateFacts> CappedListener::connected() const {
  MutexLock lock(&mu_);
  std::vector<CertificateFacts> connected;
  for (const auto& [place, proven] : proven_) {
    if (proven.facts != nullptr) connected.push_back(*proven.facts);
  }
  return connected;
}

RefusalCounts CappedListener::refused() const {
  MutexLock lock(&mu_);
  return refused_;
}

int CappedListener::open() const {
  MutexLock lock(&mu_);
  return places_.open();
}

}  // namespace pactrain::base
