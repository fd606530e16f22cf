#include "agent/exchange/tcp/data_flow.h"

#include <utility>

namespace pactrain::agent {

void DataFlow::Push(protocol::FrameHeader header, Payload payload) {
  header.after = control_sent_;
  frames_.emplace(Age{header.bucket, header.chunk, pushed_++},
                  OutFrame(header, std::move(payload)));
}

void DataFlow::MoveTo(Batch& batch) {
  while (!frames_.empty() && !batch.full()) {
    batch.Add(std::move(frames_.extract(frames_.begin()).mapped()));
  }
}

}  // namespace pactrain::agent
