// What an agent writes down of its trainers, so that it can say after it was
// killed and started again which of them are dead.
//
// A small file beside the socket, of one boot of one machine: for each trainer
// its process with its start time, and why it left if it did. The next process
// of the agent tells of those that had left and of those whose process is dead
// or dies later, and of nobody else: who lives attaches again and has a new
// entry then. A file that cannot be written or read costs that knowledge only.
//
// Not thread-safe: everything runs on the io_context's one thread.
#ifndef PACTRAIN_AGENT_LOCAL_TRAINER_BOOK_H_
#define PACTRAIN_AGENT_LOCAL_TRAINER_BOOK_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "protocol/types.h"

namespace pactrain::agent {

struct BookedTrainer {
  protocol::GroupId group;
  uint32_t rank = 0;
  protocol::Digest attach_id;
  pid_t process = 0;
  uint64_t start = 0;  // As StartOf().
  std::string left;    // "detached", or other words; empty: it was attached.
  bool operator==(const BookedTrainer&) const = default;
};

// Entries of those that left or are dead, which are kept; the oldest go.
inline constexpr size_t kMaxBookedGone = 256;

// The text of a file. `place`: as PlaceOfProcesses().
std::string WriteBook(absl::string_view agent, absl::string_view place,
                      const std::vector<BookedTrainer>& trainers);
// Nothing: it is no such text, or of another agent or place.
std::optional<std::vector<BookedTrainer>> ReadBook(absl::string_view text,
                                                   absl::string_view agent,
                                                   absl::string_view place);

class TrainerBook {
 public:
  // Called for each trainer of a former process of the agent that left or is
  // dead: `left` says why. From Open(), or from handlers of the io_context.
  using Gone = std::function<void(const BookedTrainer&)>;

  // `agent` has no spaces.
  TrainerBook(asio::io_context& io, std::string path, std::string agent,
              Gone gone);

  // Once no other process of the agent can be there.
  void Open();
  // A trainer of this process, by its connection. In place of what was known
  // of the same trainer before (the upper half of its attach ids).
  void Attached(uint64_t connection, BookedTrainer trainer);
  void Left(uint64_t connection, const std::string& why);

 private:
  struct Entry {
    BookedTrainer trainer;
    // Of a former process of the agent, as long as it lives.
    std::unique_ptr<asio::posix::stream_descriptor> watched;
  };
  void Tell(Entry& entry, const std::string& why);
  void Watch(const std::shared_ptr<Entry>& entry, int process);
  void AwaitEnd(const std::shared_ptr<Entry>& entry);
  void Write();

  asio::io_context& io_;
  const std::string path_;
  const std::string agent_;
  const std::string place_;
  const Gone gone_;
  std::vector<std::shared_ptr<Entry>> entries_;  // The oldest first.
  std::map<uint64_t, std::shared_ptr<Entry>> by_connection_;
  bool warned_ = false;  // That it cannot be written.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_TRAINER_BOOK_H_
