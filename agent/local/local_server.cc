#include "agent/local/local_server.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

using asio::posix::stream_descriptor;

// When the process is out of descriptors.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Until it is asked again whether it is a user's turn to bring a trainer.
constexpr auto kTurn = std::chrono::seconds(1);
// Before it is again the turn of those who are in.
constexpr int kAcceptsAtOnce = 32;

std::string FailedPacket(wire::Code code, const std::string& text) {
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = ~0ull;
  failed.code = code;
  failed.final = 1;
  text.copy(failed.text, sizeof(failed.text) - 1);
  return PacketOf(failed);
}

std::string WaitingPacket(const std::string& text) {
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  text.copy(waiting.text, sizeof(waiting.text) - 1);
  return PacketOf(waiting);
}

// Whose sources are users: only the sum is bounded there.
base::ConnectionPlaces::Limits AtMost(int places) {
  return {
      .open = {.total = places, .per_source = places, .from_loopback = places},
      .strangers = places};
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start(
    asio::io_context& io, const Options& options, LocalEvents* events) {
  ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(options.socket_path,
                                                       options.access.group));
  auto server = std::unique_ptr<LocalServer>(
      new LocalServer(io, options, std::move(file), events));
  server->WaitAccept();
  return server;
}

LocalServer::LocalServer(asio::io_context& io, const Options& options,
                         SocketFile file, LocalEvents* events)
    : io_(io),
      options_(options),
      file_(std::move(file)),
      events_(events),
      // Its own descriptor: asio and the file each close theirs.
      acceptor_(io, fcntl(file_.fd(), F_DUPFD_CLOEXEC, 0)),
      accept_timer_(io),
      places_(AtMost(options.max_connections)),
      refused_places_(AtMost(protocol::kMaxLocalRefused)),
      hellos_({.of = "trainers",
               .whose = "one user",
               .at_once = protocol::kMaxLocalHellosAtOnce,
               .per_second = protocol::kMaxLocalHellosPerSecond}) {}

LocalServer::~LocalServer() {
  StopListening();
  while (!links_.empty()) links_.begin()->second.link->Drop();
}

void LocalServer::Send(uint64_t trainer, std::string packet,
                       std::vector<std::shared_ptr<SharedMemory>> memory) {
  const auto it = links_.find(trainer);
  if (it == links_.end()) return;
  it->second.link->Send(std::move(packet), std::move(memory));
}

void LocalServer::SendIfRead(uint64_t trainer, std::string packet) {
  const auto it = links_.find(trainer);
  if (it == links_.end() || !it->second.link->all_sent()) return;
  it->second.link->Send(std::move(packet));
}

void LocalServer::Close(uint64_t trainer) {
  const auto it = links_.find(trainer);
  if (it != links_.end()) it->second.link->Close();
}

pid_t LocalServer::ProcessOf(uint64_t trainer) const {
  const auto it = links_.find(trainer);
  return it == links_.end() ? 0 : it->second.link->process();
}

void LocalServer::StopListening() {
  asio::error_code ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
  file_.Remove();
}

void LocalServer::WaitAccept() {
  acceptor_.async_wait(stream_descriptor::wait_read,
                       [this](const asio::error_code& error) {
                         if (!error) AcceptAll();
                       });
}

void LocalServer::AcceptAll() {
  for (int accepted = 0; accepted < kAcceptsAtOnce; ++accepted) {
    base::Fd socket(accept4(acceptor_.native_handle(), nullptr, nullptr,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Admit(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return WaitAccept();
    LOG_WARN("accepting a trainer failed: {}", std::strerror(errno));
    accept_timer_.expires_after(kAcceptPause);
    return accept_timer_.async_wait([this](const asio::error_code& error) {
      if (!error) AcceptAll();
    });
  }
  WaitAccept();
}

void LocalServer::Admit(base::Fd socket) {
  const absl::StatusOr<Peer> peer = PeerOf(socket.get());
  const uint64_t id = next_id_++;
  Entry& entry = links_[id];
  entry.user =
      peer.ok() ? absl::StrCat("user ", peer->user) : "a user who is not known";
  entry.another_user = !peer.ok() || !IsOwnUser(peer->user);
  entry.link = std::make_shared<TrainerLink>(
      io_, id, std::move(socket), peer.ok() ? peer->process : 0, options_.link,
      static_cast<TrainerLinkOwner*>(this));
  entry.link->Start();
  const absl::Status may =
      peer.ok() ? options_.access.Check(*peer) : peer.status();
  if (!may.ok()) {
    return Refuse(entry, wire::Code::kRefused, std::string(may.message()));
  }
  if (!TakePlace(entry, places_)) {
    return Refuse(entry, wire::Code::kRefused,
                  absl::StrCat("this agent has trainers on all ",
                               options_.max_connections,
                               " connections that it allows.\nStop trainers "
                               "that are no longer needed."));
  }
  entry.timer = std::make_unique<asio::steady_timer>(io_);
  entry.timer->expires_after(absl::ToChronoNanoseconds(options_.handshake));
  entry.timer->async_wait([this, id](const asio::error_code& error) {
    if (error) return;
    // Its Hello may have come while this waited for its turn.
    const auto it = links_.find(id);
    if (it != links_.end() && !it->second.introduced) it->second.link->Drop();
  });
}

bool LocalServer::TakePlace(Entry& entry, base::ConnectionPlaces& places) {
  base::Refusal limit;
  const auto admission = places.Admit(entry.user, &limit);
  if (!admission.ok()) return false;
  if (admission->gave_way) OnGaveWay(places, *admission->gave_way);
  entry.places = &places;
  entry.place = admission->place;
  return true;
}

void LocalServer::OnGaveWay(const base::ConnectionPlaces& places,
                            const base::ConnectionPlaces::GaveWay& gave_way) {
  const auto it =
      std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
        return link.second.places == &places &&
               link.second.place == gave_way.place;
      });
  PT_CHECK(it != links_.end());
  const std::shared_ptr<TrainerLink> link = it->second.link;
  if (&places == &places_) {
    const std::string text = absl::StrCat(
        "all ", options_.max_connections,
        " connections that this agent allows are open, and of those that have "
        "said nothing yet most are of ",
        gave_way.source,
        ": the oldest gave way.\nStop what connects and says nothing.");
    CountAndLog(it->second, text);
    link->Send(FailedPacket(wire::Code::kRefused, text));
  }
  link->Drop();
}

void LocalServer::Refuse(Entry& entry, wire::Code code,
                         const std::string& text) {
  CountAndLog(entry, text);
  if (entry.places == nullptr) TakePlace(entry, refused_places_);
  entry.link->Send(FailedPacket(code, text));
  entry.link->Close();
}

void LocalServer::CountAndLog(const Entry& entry, const std::string& text) {
  ++refused_;
  const std::string why = FirstLine(text);
  if (!told_.IsNews(why, options_.now(), entry.user)) return;
  LOG_WARN("connection of {} (process {}) refused: {}", entry.user,
           entry.link->process(), why);
}

int LocalServer::TrainersOf(const std::string& user) const {
  return static_cast<int>(
      std::count_if(links_.begin(), links_.end(), [&](const auto& link) {
        return link.second.introduced && link.second.user == user;
      }));
}

void LocalServer::OnPacket(TrainerLink& link,
                           absl::Span<const uint8_t> packet) {
  absl::StatusOr<TrainerPacket> parsed = ParseTrainerPacket(packet);
  if (!parsed.ok()) {
    return OnBadPacket(link, std::string(parsed.status().message()));
  }
  Entry& entry = links_.at(link.id());
  const auto* hello = std::get_if<wire::Hello>(&*parsed);
  const bool first =
      hello != nullptr || std::holds_alternative<wire::Ask>(*parsed);
  if (first == entry.introduced) {
    return OnBadPacket(link, first ? "a Hello or Ask came that is not the first"
                                   : "no Hello came first");
  }
  if (std::holds_alternative<wire::Ask>(*parsed)) {
    link.Send(PacketOf(events_->OnAsk()));
    return link.Close();
  }
  if (hello != nullptr) {
    constexpr int kMost = protocol::kMaxLocalConnectionsOfAnotherUser;
    if (entry.another_user && TrainersOf(entry.user) >= kMost) {
      return Refuse(entry, wire::Code::kRefused,
                    absl::StrCat(entry.user, " has trainers on ", kMost,
                                 " connections of this agent, as many as a "
                                 "user other than its own may.\nStop trainers "
                                 "that are no longer needed, or run an agent "
                                 "as this user."));
    }
    entry.introduced = true;
    entry.places->Prove(entry.place);
    entry.timer->cancel();
    return PassOn(link.id(), *hello);
  }
  if (entry.waits) return OnBadPacket(link, "it did not wait for its turn");
  std::visit(
      [&](const auto& message) {
        using T = std::decay_t<decltype(message)>;
        if constexpr (!std::is_same_v<T, wire::Hello> &&
                      !std::is_same_v<T, wire::Ask>) {
          events_->OnMessage(link.id(), message);
        }
      },
      *parsed);
}

void LocalServer::PassOn(uint64_t trainer, const wire::Hello& hello) {
  Entry& entry = links_.at(trainer);
  const bool waited = entry.waits;
  entry.waits =
      entry.another_user && !hellos_.Take(entry.user, options_.now()).ok();
  if (!entry.waits) return events_->OnHello(trainer, hello);
  entry.timer->expires_after(kTurn);
  entry.timer->async_wait(
      [this, trainer, hello](const asio::error_code& error) {
        if (error || !acceptor_.is_open()) return;
        const auto it = links_.find(trainer);
        if (it != links_.end() && it->second.waits) PassOn(trainer, hello);
      });
  if (waited) return;
  const std::string text =
      absl::StrCat("this agent takes ", protocol::kMaxLocalHellosAtOnce,
                   " trainers of ", entry.user, " at once, and then ",
                   protocol::kMaxLocalHellosPerSecond, " a second");
  entry.link->Send(WaitingPacket(text));
  if (told_.IsNews(text, options_.now(), entry.user)) {
    LOG_WARN("{}: more of them wait", text);
  }
}

void LocalServer::OnBadPacket(TrainerLink& link, const std::string& what) {
  Entry& entry = links_.at(link.id());
  const uint64_t id = link.id();
  const bool known = entry.introduced && !std::exchange(entry.waits, false);
  Refuse(entry, wire::Code::kInvalidArgument,
         absl::StrCat("the agent did not understand its trainer: ", what,
                      ".\nUse the same release of library and agent."));
  if (known) {
    events_->OnTrainerGone(id, absl::StrCat("failed: ", what));
  }
}

void LocalServer::OnGone(TrainerLink& link, const std::string& reason) {
  Entry& entry = links_.at(link.id());
  if (entry.introduced && !std::exchange(entry.waits, false)) {
    events_->OnTrainerGone(link.id(), reason);
  }
}

void LocalServer::OnClosed(TrainerLink& link) {
  const auto it = links_.find(link.id());
  it->second.places->Release(it->second.place);
  links_.erase(it);
}

}  // namespace pactrain::agent
