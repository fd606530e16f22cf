// Every limit on what a peer, a trainer or a file may ask for. A value is
// checked against these before it sizes an allocation, an index or a loop.
#ifndef PACTRAIN_PROTOCOL_LIMITS_H_
#define PACTRAIN_PROTOCOL_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace pactrain::protocol {

inline constexpr int kMaxRanks = 1024;           // Trainers of a job.
inline constexpr int kMaxAgents = 64;            // Agents of a job (vote mesh).
inline constexpr int kMaxSites = 32;             // Sites of a job.
inline constexpr int kMaxTrainersPerAgent = 64;  // Of one job on one node.
// Of one group and agent, in whatever generations and launches; and as many
// that are gone are remembered.
inline constexpr size_t kMaxLocalTrainers = 256;
inline constexpr size_t kMaxReasonOfLeft =
    512;                                  // Bytes of TrainerLeft::reason.
inline constexpr int kMaxModels = 16;     // Attached models of a job.
inline constexpr int kMaxJobs = 100;      // Jobs of a coordinator.
inline constexpr int kMaxBuckets = 4096;  // Buckets of a layout.
inline constexpr uint64_t kMaxElements = (1ull << 31) - 1;  // Of one model.
inline constexpr int kMaxAttempts = 4;                      // Of one step.
inline constexpr uint64_t kMaxOnset = 1'000'000'000;        // A step's number.
// Of steps that a trainer names: far above any real one, and far enough from
// the end to count on.
inline constexpr uint64_t kMaxStep = uint64_t{1} << 62;
inline constexpr size_t kMaxFramePayload = 4 << 20;    // Bytes.
inline constexpr size_t kMaxControlMessage = 1 << 20;  // Bytes.
inline constexpr size_t kMaxNameLength = 63;    // Job, site and agent names.
inline constexpr size_t kMaxTextLength = 4096;  // Reasons and error texts.
// Bytes of MaskVote::moved and StepReport::waits_for.
inline constexpr size_t kMaxMoved = 200;
inline constexpr size_t kMaxKeepParameters = 100;  // That have a name.

// Of one listener: a coordinator's for agents and operators; an agent's for
// other agents. Many programs of one machine share its loopback address.
inline constexpr int kMaxConnections = 1280;
inline constexpr int kMaxPeerConnections = 256;
inline constexpr int kMaxConnectionsPerSource = 32;  // Or as a setting says.
inline constexpr int kMaxLanes = 8;  // Connections of a pair of agents.
inline constexpr int kMaxConnectionsFromLoopback = 256;
// Of an agent's, those whose sender is not known yet.
inline constexpr int kMaxPeerHandshakes = 64;
// Of an agent's socket for trainers, and of these, trainers of one user who is
// neither root nor the agent's own: all models of 64 trainers, or half of them
// twice while these regroup, and some that only ask. More than as many are left
// for others then.
inline constexpr int kMaxLocalConnections = 2300;
inline constexpr int kMaxLocalConnectionsOfAnotherUser = 1100;
// Trainers that such a user may bring anew, at once and in each second after:
// less than the coordinator takes of the agent (kMaxJoinsPerSecond).
inline constexpr int kMaxLocalHellosAtOnce = 1100;
inline constexpr int kMaxLocalHellosPerSecond = 16;
// Of an agent's socket, beside those, until who was refused has read why.
inline constexpr int kMaxLocalRefused = 64;
inline constexpr int kHandshakeSeconds = 5;      // TLS and what comes first.
inline constexpr int kMaxConcurrentStreams = 4;  // Of one connection.
inline constexpr size_t kMaxMetadata = 8 << 10;  // Bytes, of one call.

// Bytes that one identity may send to a coordinator at once, and in each second
// after them; a message counts as kBytesOfMessage more. All names that one job
// key makes may send as much as kIdentitiesOfAJobKey.
inline constexpr int kMaxBytesAtOnce = 16 << 20;
inline constexpr int kMaxBytesPerSecond = 2 << 20;
inline constexpr int kBytesOfMessage = 4096;
inline constexpr int kIdentitiesOfAJobKey = 8;

// Of one identity, at once, and in each second after them. Joins are ranks that
// an agent brings anew: 64 of each of 16 models come at every regroup of a job.
// Changes are what an operator does.
inline constexpr int kMaxJoinsAtOnce = 4096;
inline constexpr int kMaxJoinsPerSecond = 64;
inline constexpr int kMaxChangesAtOnce = 500;
inline constexpr int kMaxChangesPerSecond = 1;

// Of an agent's stream to the coordinator, of all kinds.
inline constexpr int kMaxMessagesPerSecond = 20'000;
// Of one agent on one group; more are dropped. An agent sends two by itself,
// one after each of a generation's first eight steps, and some more where it
// ends.
inline constexpr int kMaxReportsPerSecond = 20;
inline constexpr int kMaxSeriesPerJob = 200;  // Of a metrics endpoint.

inline constexpr size_t kMaxNoiseSamples = 16;  // Of one report.
inline constexpr int kMaxCauses = 64;           // Of failed attempts.

inline constexpr uint32_t kChunkElements = 65536;  // One owner per chunk.
// Sent, checked and folded at once: 16 KiB in fp32, and of the n-level codecs,
// whose frames would be lost in their headers otherwise, 3 to 10 KiB.
inline constexpr uint32_t kFrameElements = 4096;
inline constexpr uint32_t kLevelsFrameElements = 16384;

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_LIMITS_H_
