// The agent's end of the local socket for tests: a thread that runs a script.
//
// Every receive is bounded; a script that gets something unexpected records a
// test failure and goes on with what it has.
#ifndef PACTRAIN_TRAINER_FAKE_AGENT_H_
#define PACTRAIN_TRAINER_FAKE_AGENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

class FakeAgent {
 public:
  // Listens on a socket in a new directory; then runs `script` in a thread.
  explicit FakeAgent(std::function<void(FakeAgent&)> script);
  // Waits for the script's end.
  ~FakeAgent();

  std::string address() const { return "unix:" + path_; }
  const std::string& path() const { return path_; }

  // ---- For the script ----
  // Of every Attached.
  static constexpr wire::Digest128 kLineage = {5, 5};
  // Accepts a trainer and reads its Hello.
  wire::Hello Accept();
  // The Attached that suits `hello`: step deadline 60 s, FULL, base step 7.
  static wire::Attached AttachedFor(const wire::Hello& hello);
  // Makes sealed memory and sends it along.
  void SendAttached(const wire::Attached& message);
  // Accept, then SendAttached of what suits.
  void Attach();
  void SendWithFds(const wire::Attached& message, const std::vector<int>& fds);

  template <typename Message>
  void Send(const Message& message) {
    SendBytes(&message, sizeof(message));
  }
  void SendWaiting(const std::string& text);
  void SendResubmit(uint64_t step, uint32_t attempt);
  // Of this submit's bucket, and of all before it.
  void SendWritten(const wire::Submit& last, uint64_t elements);
  void SendCommitted(const wire::Submit& last, const wire::Decision& next);
  void SendFailed(uint64_t step, wire::Code code, bool final,
                  const std::string& text);
  // The next packet, which must be of this kind.
  template <typename Message>
  Message Receive() {
    Message message = {};
    ReceiveBytes(&message, sizeof(message));
    return message;
  }
  // Submits up to and including the last one of a step.
  std::vector<wire::Submit> ReceiveStep();
  // True if the trainer closes its end and says nothing before.
  bool AtEnd();
  void Hangup() { trainer_ = base::Fd(); }
  // Leaves the socket file, as a killed agent does.
  void Die() {
    Hangup();
    listener_ = base::Fd();
  }

  // A memfd of this size that can no longer be resized if `sealed`.
  static base::Fd MakeMemory(uint64_t bytes, bool sealed);

  float* slot(uint64_t offset) { return At(slot_, offset); }
  float* result(uint64_t offset) { return At(result_, offset); }
  // result = slot * factor for these buckets.
  void Answer(const std::vector<wire::Submit>& submits, float factor);

 private:
  static float* At(uint8_t* base, uint64_t offset) {
    return reinterpret_cast<float*>(base + offset);
  }
  void SendBytes(const void* data, size_t bytes);
  void ReceiveBytes(void* data, size_t bytes);

  std::string directory_;
  std::string path_;
  base::Fd listener_;
  base::Fd trainer_;
  uint8_t* slot_ = nullptr;
  uint8_t* result_ = nullptr;
  uint64_t bytes_ = 0;
  std::thread thread_;
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_FAKE_AGENT_H_
