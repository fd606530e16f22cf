// What ranks settle before the first step: equal settings and one mask set.
//
// Every rank tells its settings and the digest of its masks; if the digests
// differ, rank 0's masks go to all. Both are steps through the agents, in the
// form of the Python client's.
#ifndef PACTRAIN_TRAINER_CPP_AGREEMENT_H_
#define PACTRAIN_TRAINER_CPP_AGREEMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/words.h"

namespace pactrain::internal {

// Settings that have to be equal on all ranks, in the order of the record.
inline constexpr std::array<const char*, 5> kSettingNames = {
    "gse", "sync_masks", "buffer_sync_interval", "parameter_check_interval",
    "buffer_bytes"};
inline constexpr size_t kSettleSteps = kSettingNames.size();
inline constexpr size_t kDigestAt = kSettleSteps + 1;
inline constexpr size_t kRecordWords = kDigestAt + 4;

using Record = std::array<uint32_t, kRecordWords>;

inline Record MakeRecord(const AttachConfig& config, uint64_t buffer_bytes,
                         const Digest& masks) {
  return {config.gse ? 1u : 0u,
          config.sync_masks ? 1u : 0u,
          config.buffer_sync_interval,
          config.parameter_check_interval,
          static_cast<uint32_t>(buffer_bytes),
          1,  // Masks that are declared settle at once.
          static_cast<uint32_t>(masks.hi >> 32),
          static_cast<uint32_t>(masks.hi),
          static_cast<uint32_t>(masks.lo >> 32),
          static_cast<uint32_t>(masks.lo)};
}

inline Digest MaskDigestOf(const Record& record) {
  const auto pair = [&](size_t at) {
    return uint64_t{record[at]} << 32 | record[at + 1];
  };
  return {pair(kDigestAt), pair(kDigestAt + 2)};
}

// By rank.
inline std::vector<Record> GatherRecords(Session& session, const Record& mine,
                                         uint32_t rank, uint32_t world_size) {
  std::vector<uint32_t> words(size_t{world_size} * kRecordWords);
  std::copy(mine.begin(), mine.end(), words.begin() + rank * kRecordWords);
  words = ExchangeWords(
      session, words,
      DigestOf("pactrain settings 1 " + std::to_string(kRecordWords)));
  std::vector<Record> records(world_size);
  for (size_t r = 0; r < world_size; ++r) {
    std::copy_n(words.begin() + static_cast<ptrdiff_t>(r * kRecordWords),
                kRecordWords, records[r].begin());
  }
  return records;
}

inline void CheckRecords(const std::vector<Record>& records, bool sync_masks) {
  for (size_t r = 0; r < records.size(); ++r) {
    for (size_t i = 0; i < kSettingNames.size(); ++i) {
      if (records[r][i] == records[0][i]) continue;
      throw RefusedError(
          std::string(kSettingNames[i]) + " differs: rank 0 has " +
          std::to_string(records[0][i]) + ", rank " + std::to_string(r) +
          " has " + std::to_string(records[r][i]) +
          ".\nGive all ranks the same options and model.");
    }
    const Digest first = MaskDigestOf(records[0]);
    const Digest masks = MaskDigestOf(records[r]);
    if (masks == first || sync_masks) continue;
    throw RefusedError("Mask sets differ and sync_masks is off: rank 0 has " +
                       first.ToString() + ", rank " + std::to_string(r) +
                       " has " + masks.ToString() +
                       ".\nPrune all ranks alike, or attach with sync_masks.");
  }
}

// Words of rank 0's masks on the wire: each parameter starts a word.
inline size_t MaskWords(const ParameterTable& table) {
  size_t words = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    words += (table[i].elements() + 31) / 32;
  }
  return words;
}

inline MaskSet BroadcastMasks(Session& session, const ParameterTable& table,
                              const MaskSet& mine, uint32_t rank) {
  std::vector<uint8_t> bytes;
  bytes.reserve(4 * MaskWords(table));
  for (size_t i = 0; i < table.size(); ++i) {
    const uint64_t elements = table[i].elements();
    // A mask that keeps all is all ones, its padding, too.
    std::vector<uint8_t> bits((elements + 31) / 32 * 4, 0xff);
    if (!mine[i].empty()) {
      const std::vector<uint8_t> packed = Pack(mine[i]);
      std::fill(bits.begin(), bits.end(), uint8_t{0});
      std::copy(packed.begin(), packed.end(), bits.begin());
    }
    bytes.insert(bytes.end(), bits.begin(), bits.end());
  }
  BroadcastBytes(session, rank, bytes,
                 DigestOf("pactrain masks" + table.ModelDigest().ToBytes()));
  std::vector<Mask> masks;
  size_t offset = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const uint64_t elements = table[i].elements();
    masks.push_back(
        Unpack(std::span<const uint8_t>(bytes).subspan(offset), elements));
    offset += (elements + 31) / 32 * 4;
  }
  return MaskSet(table, std::move(masks));
}

// Returns the mask set that all ranks use from now on. All ranks call it.
// RefusedError: settings differ, or masks do and sync_masks is off; on all
// ranks. Throws the typed error of the exchange.
inline MaskSet Agree(Session& session, const AttachConfig& config,
                     const ParameterTable& table, MaskSet mine,
                     uint64_t buffer_bytes) {
  const std::vector<Record> records =
      GatherRecords(session, MakeRecord(config, buffer_bytes, mine.digest()),
                    config.rank, config.world_size);
  CheckRecords(records, config.sync_masks);
  for (const Record& record : records) {
    if (MaskDigestOf(record) != MaskDigestOf(records[0])) {
      return BroadcastMasks(session, table, mine, config.rank);
    }
  }
  return mine;
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_AGREEMENT_H_
