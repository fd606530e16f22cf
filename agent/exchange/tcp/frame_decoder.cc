#include "agent/exchange/tcp/frame_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace pactrain::agent {
namespace {

// Moves what fits from the front of `in` into `to[*filled ..]`.
void Fill(absl::Span<uint8_t> to, size_t* filled,
          absl::Span<const uint8_t>* in) {
  const size_t n = std::min(to.size() - *filled, in->size());
  if (n == 0) return;
  std::memcpy(to.data() + *filled, in->data(), n);
  *filled += n;
  in->remove_prefix(n);
}

}  // namespace

absl::Status FrameDecoder::Feed(absl::Span<const uint8_t> bytes,
                                std::vector<Frame>* frames) {
  while (!bytes.empty()) {
    if (header_filled_ < header_bytes_.size()) {
      Fill(absl::MakeSpan(header_bytes_), &header_filled_, &bytes);
      if (header_filled_ < header_bytes_.size()) return absl::OkStatus();
      ASSIGN_OR_RETURN(header_, protocol::DecodeHeader(header_bytes_.data()));
      // Aligned for values of any type, and not written to before they come.
      payload_.reset(new uint8_t[header_.bytes]);
    }
    Fill({payload_.get(), header_.bytes}, &payload_filled_, &bytes);
    if (payload_filled_ == header_.bytes) {
      RETURN_IF_ERROR(FinishFrame(frames));
    }
  }
  return absl::OkStatus();
}

absl::Status FrameDecoder::FinishFrame(std::vector<Frame>* frames) {
  const absl::Span<const uint8_t> bytes(payload_.get(), header_.bytes);
  const uint32_t crc = base::Crc32c(bytes.data(), bytes.size());
  if (crc != header_.payload_crc) {
    return absl::DataLossError(
        absl::StrCat("payload of bucket ", header_.bucket, " chunk ",
                     header_.chunk, " frame ", header_.frame, " has CRC ", crc,
                     " but its header says ", header_.payload_crc));
  }
  frames->push_back({header_, {std::move(payload_), bytes}});
  payload_ = nullptr;
  header_filled_ = 0;
  payload_filled_ = 0;
  return absl::OkStatus();
}

}  // namespace pactrain::agent
