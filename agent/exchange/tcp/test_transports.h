// Transports on loopback in one event loop, for tests.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TRANSPORTS_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TRANSPORTS_H_

#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/exchange/tcp/transport.h"
#include "asio/buffer.hpp"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "gtest/gtest.h"

namespace pactrain::agent {

// What a transport told, in order.
class Recorder : public TransportEvents {
 public:
  void OnPeerConnected(const std::string& agent) override {
    connected.push_back(agent);
  }
  void OnPeerDisconnected(const std::string& agent,
                          const absl::Status& why) override {
    std::cerr << "lost " << agent << ": " << why << '\n';
    disconnected.push_back(why);
  }
  void OnPeerData(const std::string& agent, Frame frame) override {
    order += 'd';
    frames.push_back(std::move(frame));
  }
  void OnPeerControl(const std::string& agent,
                     const protocol::GroupControl& control) override {
    order += 'c';
    controls.push_back(control);
  }

  std::vector<std::string> connected;
  std::vector<absl::Status> disconnected;
  std::vector<Frame> frames;
  std::vector<protocol::GroupControl> controls;
  std::string order;
};

class TestTransports : public ::testing::Test {
 protected:
  // Both ends are this one thread: what holds it up (a sanitizer, a machine
  // that does other work) is no silent peer and no slow handshake, and frames
  // in a closed connection are gone.
  TestTransports() {
    limits_.suspect = absl::Minutes(1);
    limits_.handshake = absl::Minutes(1);
  }

  struct Node {
    Recorder events;
    std::unique_ptr<Transport> transport;
    Transport::Peer AsPeer() const {
      return {name, incarnation, site, transport->listen_address()};
    }
    std::string name;
    base::Digest incarnation;
    std::string site;
  };

  // Of `options` all but the name and the times of a connection count.
  std::unique_ptr<Node> MakeNode(const std::string& name,
                                 Transport::Options options) {
    auto node = std::make_unique<Node>();
    node->name = name;
    node->incarnation = base::DigestOf(name);
    node->site = "site-" + name;
    options.agent = name;
    options.site = node->site;
    options.incarnation = node->incarnation;
    options.heartbeat = absl::Milliseconds(20);
    options.connection = limits_;
    auto transport = Transport::Start(io_, options, &node->events);
    PT_CHECK(transport.ok());
    node->transport = *std::move(transport);
    return node;
  }
  void Introduce(Node& a, Node& b) {
    a.transport->SetPeers({b.AsPeer()});
    b.transport->SetPeers({a.AsPeer()});
    ASSERT_TRUE(RunUntil([&] {
      return !a.events.connected.empty() && !b.events.connected.empty();
    }));
  }

  bool RunUntil(const std::function<bool()>& done) {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(5);
    while (!done()) {  // Asked once a turn: it may take a step itself.
      if (base::MonotonicNow() > end) return false;
      io_.run_one_for(std::chrono::milliseconds(20));
    }
    return true;
  }
  // A peer written by hand, to send what a Transport would not.
  asio::ip::tcp::socket DialRaw(const Node& node,
                                const std::string& from = "127.0.0.1") {
    asio::ip::tcp::socket socket(io_, {asio::ip::make_address(from), 0});
    const std::string address = node.transport->listen_address();
    const int port = std::stoi(address.substr(address.rfind(':') + 1));
    socket.connect(
        {asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
    return socket;
  }
  bool RunUntilClosed(asio::ip::tcp::socket& socket) {
    socket.non_blocking(true);
    return RunUntil([&] {
      char byte[4096];
      asio::error_code error;
      socket.read_some(asio::buffer(byte), error);
      return error && error != asio::error::would_block;
    });
  }

  asio::io_context io_;
  Connection::Limits limits_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_TEST_TRANSPORTS_H_
