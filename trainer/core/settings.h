// What has to be equal on all ranks of a job beside the model: which of two
// ranks' settings differ, in the words of attach() and AttachConfig.
//
// Settings are lines of a name and a number, "gse 1\nsync_masks 1\n...", in an
// order that all ranks have.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_TRAINER_CORE_SETTINGS_H_
#define PACTRAIN_TRAINER_CORE_SETTINGS_H_

#include <cstdint>
#include <string>

namespace pactrain::trainer {

// "gse differs: rank 0 has True, rank 2 has False.\nGive all ranks the same
// gse."; empty: the settings are equal.
std::string SettingsDifference(const std::string& settings, uint32_t rank,
                               const std::string& other, uint32_t other_rank);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_SETTINGS_H_
