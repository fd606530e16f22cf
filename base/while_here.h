// Handlers that do nothing once their owner is gone.
//
// To cancel a timer is not enough: one that has run out already is queued, and
// its handler is called as if nothing had happened. So is what was posted.
//
//   timer_.async_wait(here_.Wrap([this](const asio::error_code& e) { ... }));
//   base::WhileHere here_;  // A member of what the handler captures.
//
// Not thread-safe: the owner goes on the thread that runs its handlers.
#ifndef PACTRAIN_BASE_WHILE_HERE_H_
#define PACTRAIN_BASE_WHILE_HERE_H_

#include <memory>
#include <utility>

namespace pactrain::base {

class WhileHere {
 public:
  WhileHere() : here_(std::make_shared<const bool>(true)) {}
  WhileHere(const WhileHere&) = delete;
  WhileHere& operator=(const WhileHere&) = delete;

  template <typename Handler>
  auto Wrap(Handler handler) const {
    return [here = std::weak_ptr<const bool>(here_),
            handler = std::move(handler)](auto&&... arguments) mutable {
      if (here.expired()) return;
      handler(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  std::shared_ptr<const bool> here_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_WHILE_HERE_H_
