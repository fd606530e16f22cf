#include "tests/e2e/cluster/relay.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "asio/post.hpp"
#include "asio/write.hpp"
#include "base/check.h"
#include "base/net.h"

namespace pactrain::e2e {

using asio::ip::tcp;

struct Relay::Pipe {
  Pipe(tcp::socket client, asio::io_context& io)
      : ends{std::move(client), tcp::socket(io)},
        buffers{std::vector<char>(64 << 10), std::vector<char>(64 << 10)} {}
  void Break() {
    asio::error_code ignored;
    for (tcp::socket& end : ends) end.close(ignored);
  }
  std::array<tcp::socket, 2> ends;  // Who dialled, and the target.
  std::array<std::vector<char>, 2> buffers;
};

Relay::Relay()
    : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}), thread_([this] {
        AcceptNext();
        io_.run();
      }) {}

Relay::~Relay() {
  io_.stop();
  thread_.join();
}

std::string Relay::address() const {
  return absl::StrCat("127.0.0.1:", acceptor_.local_endpoint().port());
}

void Relay::SetTarget(const std::string& address) {
  const auto parsed = base::ParseHostPort(address);
  PT_CHECK(parsed.ok());
  target_ = {asio::ip::make_address(parsed->host), parsed->port};
}

void Relay::BreakAll() {
  asio::post(io_, [this] {
    for (const auto& weak : std::exchange(pipes_, {})) {
      if (const auto pipe = weak.lock()) pipe->Break();
    }
  });
}

void Relay::AcceptNext() {
  acceptor_.async_accept(
      [this](const asio::error_code& error, tcp::socket client) {
        if (error) return;
        auto pipe = std::make_shared<Pipe>(std::move(client), io_);
        asio::error_code refused;
        pipe->ends[1].connect(target_, refused);
        if (!refused) {
          pipes_.push_back(pipe);
          Forward(pipe, 0);
          Forward(pipe, 1);
        }
        AcceptNext();
      });
}

void Relay::Forward(std::shared_ptr<Pipe> pipe, int from) {
  tcp::socket& source = pipe->ends[from];
  source.async_read_some(
      asio::buffer(pipe->buffers[from]),
      [this, pipe, from](const asio::error_code& error, size_t bytes) {
        if (error) return pipe->Break();
        if (damage_.exchange(false)) pipe->buffers[from][bytes / 2] ^= 1;
        asio::async_write(
            pipe->ends[1 - from],
            asio::buffer(pipe->buffers[from].data(), bytes),
            [this, pipe, from](const asio::error_code& failed, size_t) {
              if (failed) return pipe->Break();
              Forward(pipe, from);
            });
      });
}

}  // namespace pactrain::e2e
