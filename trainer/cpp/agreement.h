// What ranks settle before the first step: equal settings and one mask set.
//
// Every rank tells its settings and the digest of its masks; if the digests
// differ, rank 0's masks go to all. Both are steps through the agents, in the
// form of the Python client's.
#ifndef PACTRAIN_TRAINER_CPP_AGREEMENT_H_
#define PACTRAIN_TRAINER_CPP_AGREEMENT_H_

#include <algorithm>
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
#include "trainer/pactrain.h"

namespace pactrain {

// What all ranks have settled on.
struct Agreed {
  MaskSet masks;
  uint32_t settle_steps = 1;  // Of rank 0's masks: steps until a vote counts.
};

namespace internal {

// Settings that have to be equal on all ranks, in the order of the record.
inline constexpr std::array<const char*, 11> kSettingNames = {
    "gse",
    "sync_masks",
    "buffer_sync_interval",
    "parameter_check_interval",
    "buffer_bytes",
    "settle_steps",
    "on_shrink",
    "activate_at",
    "pin",
    "pin_from",
    "track"};
// Of one rank's masks, so it may differ, unless each rank tracks its own.
inline constexpr size_t kSettleSteps = 5;
inline constexpr size_t kTrack = 10;
inline constexpr size_t kDigestAt = kSettingNames.size();
inline constexpr size_t kRecordWords = kDigestAt + 4;

using Record = std::array<uint32_t, kRecordWords>;

using Settings = std::array<uint32_t, kSettingNames.size()>;

inline Settings SettingsOf(const AttachConfig& config, uint64_t buffer_bytes,
                           uint32_t settle_steps) {
  const Onset onset = config.onset();
  return {config.drops_gradients() ? 1u : 0u,
          config.sync_masks ? 1u : 0u,
          config.buffer_sync_interval,
          config.parameter_check_interval,
          static_cast<uint32_t>(buffer_bytes),
          settle_steps,
          static_cast<uint32_t>(config.on_shrink),
          config.activate_at,
          onset.pin(),
          onset.pin_from,
          config.track ? 1u : 0u};
}

// For ranks that come later, which take settle_steps with the state, unless
// each tracks its own masks.
inline std::string TextOf(const Settings& settings) {
  std::string text;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (i == kSettleSteps && settings[kTrack] == 0) continue;
    text += std::string(kSettingNames[i]) + " " + std::to_string(settings[i]) +
            "\n";
  }
  return text;
}

// RefusedError: the settings of two ranks differ; names both.
inline void CheckEqual(size_t rank, const Settings& settings, size_t other_rank,
                       const Settings& other) {
  const std::string difference = pt_settings_difference(
      TextOf(settings).c_str(), static_cast<uint32_t>(rank),
      TextOf(other).c_str(), static_cast<uint32_t>(other_rank));
  if (!difference.empty()) throw RefusedError(difference);
}

inline Record MakeRecord(const Settings& settings, const Digest& masks) {
  Record record;
  std::copy(settings.begin(), settings.end(), record.begin());
  record[kDigestAt] = static_cast<uint32_t>(masks.hi >> 32);
  record[kDigestAt + 1] = static_cast<uint32_t>(masks.hi);
  record[kDigestAt + 2] = static_cast<uint32_t>(masks.lo >> 32);
  record[kDigestAt + 3] = static_cast<uint32_t>(masks.lo);
  return record;
}

inline Settings SettingsIn(const Record& record) {
  Settings settings;
  std::copy_n(record.begin(), settings.size(), settings.begin());
  return settings;
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
      session, std::move(words),
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
    CheckEqual(0, SettingsIn(records[0]), r, SettingsIn(records[r]));
    const Digest first = MaskDigestOf(records[0]);
    const Digest masks = MaskDigestOf(records[r]);
    if (masks == first || sync_masks) continue;
    throw RefusedError("Mask sets differ and sync_masks is off: rank 0 has " +
                       first.ToString() + ", rank " + std::to_string(r) +
                       " has " + masks.ToString() +
                       ".\nPrune all ranks alike, or attach with sync_masks.");
  }
}

inline size_t BitWords(size_t bits) { return (bits + 31) / 32; }

// Words of AppendMasks().
inline size_t PackedWords(const ParameterTable& table) {
  size_t words = BitWords(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    words += BitWords(table[i].elements());
  }
  return words;
}

// Words of the second exchange: who failed, masks and kinds.
inline size_t MaskWords(const ParameterTable& table, uint32_t world_size) {
  return BitWords(world_size) + PackedWords(table);
}

// Appends one bit for each of `flags`, filled up to whole words.
inline void AppendBits(std::vector<uint32_t>& words, const Mask& flags) {
  const std::vector<uint8_t> packed = Pack(flags);
  const size_t first = words.size();
  words.resize(first + BitWords(flags.size()));
  std::copy(packed.begin(), packed.end(),
            reinterpret_cast<uint8_t*>(words.data() + first));
}

// The reverse: takes `count` bits from the words at `*first` on.
inline Mask TakeBits(const std::vector<uint32_t>& words, size_t* first,
                     size_t count) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data() + *first);
  *first += BitWords(count);
  return Unpack({bytes, (count + 7) / 8}, count);
}

// Appends masks and kinds; each mask begins a word. Null: zeros.
inline void AppendMasks(std::vector<uint32_t>& words,
                        const ParameterTable& table, const MaskSet* masks) {
  if (masks == nullptr) return words.resize(words.size() + PackedWords(table));
  Mask frozen(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const bool whole = (*masks)[i].empty();
    AppendBits(words, whole ? Mask(table[i].elements(), 1) : (*masks)[i]);
    frozen[i] = masks->is_frozen(i) ? 1 : 0;
  }
  AppendBits(words, frozen);
}

// The reverse, from the words at `*first` on.
inline MaskSet TakeMasks(const std::vector<uint32_t>& words, size_t* first,
                         const ParameterTable& table) {
  std::vector<Mask> masks;
  for (size_t i = 0; i < table.size(); ++i) {
    masks.push_back(TakeBits(words, first, table[i].elements()));
  }
  const Mask frozen = TakeBits(words, first, table.size());
  return MaskSet(table, std::move(masks), {frozen.begin(), frozen.end()});
}

// Rank 0's masks and kinds. All ranks call it after the same step.
// PacTrainError: a rank called it with `failed`, or the exchange failed; on all
// ranks. REQUIRES: no step is open.
inline MaskSet BroadcastMasks(Session& session, const ParameterTable& table,
                              const MaskSet& mine, bool failed = false) {
  const uint32_t rank = session.rank();
  const uint32_t world_size = session.world_size();
  std::vector<uint32_t> words;
  Mask failures(world_size);
  failures[rank] = failed ? 1 : 0;
  AppendBits(words, failures);
  AppendMasks(words, table, rank == 0 ? &mine : nullptr);
  words =
      ExchangeWords(session, std::move(words),
                    DigestOf("pactrain masks" + table.ModelDigest().ToBytes()));
  size_t next = 0;
  failures = TakeBits(words, &next, world_size);
  const auto failure = std::find(failures.begin(), failures.end(), 1);
  if (failure != failures.end()) {
    throw PacTrainError("Pruning failed on rank " +
                        std::to_string(failure - failures.begin()) +
                        ", whose own error says why; masks are as before.\n"
                        "Mend that, and prune all ranks again.");
  }
  return TakeMasks(words, &next, table);
}

// Returns what all ranks use from now on. All ranks call it.
// RefusedError: settings differ, or masks do and sync_masks is off; on all
// ranks. Throws the typed error of the exchange.
inline Agreed Agree(Session& session, const AttachConfig& config,
                    const ParameterTable& table, MaskSet mine,
                    uint64_t buffer_bytes) {
  const Settings settings =
      SettingsOf(config, buffer_bytes, config.settle_steps());
  const std::vector<Record> records =
      GatherRecords(session, MakeRecord(settings, mine.digest()),
                    session.rank(), session.world_size());
  CheckRecords(records, config.sync_masks);
  const uint32_t settle_steps = records[0][kSettleSteps];
  for (const Record& record : records) {
    if (MaskDigestOf(record) != MaskDigestOf(records[0])) {
      return {BroadcastMasks(session, table, mine), settle_steps};
    }
  }
  return {std::move(mine), settle_steps};
}

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_AGREEMENT_H_
