// A TCP relay between two agents that damages what passes through it.
//
// Thread-safe; runs on a thread of its own until destroyed.
#ifndef PACTRAIN_TESTS_E2E_CLUSTER_RELAY_H_
#define PACTRAIN_TESTS_E2E_CLUSTER_RELAY_H_

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"

namespace pactrain::e2e {

class Relay {
 public:
  Relay();
  ~Relay();

  // "127.0.0.1:port": what is dialled instead of the target.
  std::string address() const;
  // REQUIRES: set before anybody dials.
  void SetTarget(const std::string& address);

  // Flips one bit of the next bytes that pass.
  void DamageNext() { damage_ = true; }
  // Breaks every open connection; new ones are relayed again.
  void BreakAll();

 private:
  struct Pipe;

  void AcceptNext();
  void Forward(std::shared_ptr<Pipe> pipe, int from);

  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::endpoint target_;
  std::list<std::weak_ptr<Pipe>> pipes_;  // Only on the thread.
  std::atomic<bool> damage_{false};
  std::thread thread_;
};

}  // namespace pactrain::e2e

#endif  // PACTRAIN_TESTS_E2E_CLUSTER_RELAY_H_
