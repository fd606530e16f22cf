// The two messages that go before a rank's state (state_transfer.h), byte by
// byte as the Python client writes them: little-endian numbers, digests with
// the most significant byte first, texts filled up with zeros.
#ifndef PACTRAIN_TRAINER_CPP_TRANSFER_FORM_H_
#define PACTRAIN_TRAINER_CPP_TRANSFER_FORM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/step_clock.h"
#include "trainer/cpp/types.h"
#include "trainer/cpp/world.h"

namespace pactrain::internal {

class FormWriter {
 public:
  void Number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i, value >>= 8) {
      data.push_back(static_cast<uint8_t>(value));
    }
  }
  void Put(const Digest& digest) {
    for (const char c : digest.ToBytes()) {
      data.push_back(static_cast<uint8_t>(c));
    }
  }
  // Cut off where a character of UTF-8 begins.
  void Text(const std::string& text, size_t bytes) {
    size_t size = std::min(text.size(), bytes);
    const auto inside = [&] {
      return size < text.size() && (text[size] & 0xc0) == 0x80;
    };
    while (size > 0 && inside()) --size;
    data.insert(data.end(), text.begin(),
                text.begin() + static_cast<ptrdiff_t>(size));
    data.resize(data.size() + bytes - size);
  }

  std::vector<uint8_t> data;
};

// REQUIRES: no more is read than there is.
class FormReader {
 public:
  explicit FormReader(std::span<const uint8_t> data) : data_(data) {}

  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i > 0; --i) value = value << 8 | data_[i - 1];
    data_ = data_.subspan(bytes);
    return value;
  }
  Digest TakeDigest() {
    const auto half = [&] {
      uint64_t value = 0;
      for (size_t i = 0; i < 8; ++i) value = value << 8 | data_[i];
      data_ = data_.subspan(8);
      return value;
    };
    const uint64_t hi = half();
    return {hi, half()};
  }
  std::string Text(size_t bytes) {
    const auto end = std::find(data_.begin(), data_.begin() + bytes, 0);
    std::string text(data_.begin(), end);
    data_ = data_.subspan(bytes);
    return text;
  }

 private:
  std::span<const uint8_t> data_;
};

// What the donor says first.
struct TransferHeader {
  static constexpr size_t kNamesBytes = 240;
  static constexpr size_t kBytes =
      4 * kSettingNames.size() + 3 * 8 + 4 + 2 * 16 + kNamesBytes;

  Settings settings = {};
  Progress progress = {};
  uint32_t unnamed_optimizers = 0;
  Digest parameters = {};
  Digest names_digest = {};
  std::string names = {};  // For messages; may be cut off.

  std::vector<uint8_t> Pack() const {
    FormWriter out;
    for (const uint32_t setting : settings) out.Number(setting, 4);
    out.Number(progress.committed, 8);
    out.Number(progress.buffer_sync_age, 8);
    out.Number(progress.parameter_check_age, 8);
    out.Number(unnamed_optimizers, 4);
    out.Put(parameters);
    out.Put(names_digest);
    out.Text(names, kNamesBytes);
    return out.data;
  }

  static TransferHeader Unpack(std::span<const uint8_t> data) {
    FormReader in(data);
    TransferHeader header;
    for (uint32_t& setting : header.settings) {
      setting = static_cast<uint32_t>(in.Number(4));
    }
    header.progress.committed = in.Number(8);
    header.progress.buffer_sync_age = in.Number(8);
    header.progress.parameter_check_age = in.Number(8);
    header.unnamed_optimizers = static_cast<uint32_t>(in.Number(4));
    header.parameters = in.TakeDigest();
    header.names_digest = in.TakeDigest();
    header.names = in.Text(kNamesBytes);
    return header;
  }
};

// Behind the header: a bit for each rank that needs the state.
inline constexpr size_t kNeedyBytes = kMaxRanks / 8;

// What the donor says if somebody needs its state. Size 0: it cannot give it.
struct Announcement {
  static constexpr size_t kProblemBytes = 480;
  static constexpr size_t kBytes = 8 + 16 + kProblemBytes;

  uint64_t size = 0;
  Digest digest = {};
  std::string problem = {};

  std::vector<uint8_t> Pack() const {
    FormWriter out;
    out.Number(size, 8);
    out.Put(digest);
    out.Text(problem, kProblemBytes);
    return out.data;
  }

  static Announcement Unpack(std::span<const uint8_t> data) {
    FormReader in(data);
    Announcement announcement;
    announcement.size = in.Number(8);
    announcement.digest = in.TakeDigest();
    announcement.problem = in.Text(kProblemBytes);
    return announcement;
  }
};

// A slot holds at least so much, whatever the model.
inline constexpr uint64_t kLeastSlotBytes =
    (std::max(TransferHeader::kBytes + kNeedyBytes, Announcement::kBytes) +
     63) /
    64 * 64;

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_TRANSFER_FORM_H_
