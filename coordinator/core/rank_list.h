// Ranks as words: "rank 2", "ranks 0, 1, 5", "ranks 0, 1, ... (17 in all)".
#ifndef PACTRAIN_COORDINATOR_CORE_RANK_LIST_H_
#define PACTRAIN_COORDINATOR_CORE_RANK_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace pactrain::coordinator {

std::string RankList(const std::vector<uint32_t>& ranks);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_RANK_LIST_H_
