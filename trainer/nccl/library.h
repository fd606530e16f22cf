// The NCCL of this process: the one that torch has loaded, never a second copy.
//
// Thread-safe once found.
#ifndef PACTRAIN_TRAINER_NCCL_LIBRARY_H_
#define PACTRAIN_TRAINER_NCCL_LIBRARY_H_

#include <memory>
#include <string>
#include <variant>

#include "trainer/nccl/api.h"

namespace pactrain::trainer::nccl {

class Library {
 public:
  // The text says, in one line, why there is none that can be used: not in this
  // process, without a function that is needed, or of a version that hangs.
  static std::variant<std::shared_ptr<const Library>, std::string> Find(
      const char* name = "libnccl.so.2");

  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const Calls& calls() const { return calls_; }
  int version() const { return version_; }  // 22907 is 2.29.7.
  const std::string& file() const { return file_; }

  // "ncclAllReduce: unhandled cuda error (1): its last words".
  std::string Words(const char* call, int result) const;

 private:
  Library() = default;

  void* library_ = nullptr;
  Calls calls_ = {};
  int version_ = 0;
  std::string file_;
};

// "2.29.7"
std::string VersionText(int version);
// Why this version is not used; empty: it is.
std::string Refusal(int version);

}  // namespace pactrain::trainer::nccl

#endif  // PACTRAIN_TRAINER_NCCL_LIBRARY_H_
