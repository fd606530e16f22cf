#include "trainer/core/packet.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace pactrain::trainer {
namespace {

constexpr uint64_t kMaxDeadlineMs = 24ull * 3600 * 1000;

template <size_t kBytes>
bool HasNul(const char (&text)[kBytes]) {
  return std::memchr(text, 0, kBytes) != nullptr;
}

std::string CheckDecision(const wire::Decision& decision) {
  if (decision.mode < 1 || decision.mode > 3) {
    return "decision.mode is " + std::to_string(decision.mode) +
           ", this library knows 1 (FULL), 2 (COMPACTED) and 3 (TERNARY)";
  }
  if (decision.codec < 1 || decision.codec > 7) {
    return "decision.codec is " + std::to_string(decision.codec) +
           ", this library knows 1 (fp32), 2 (bf16) and 3 to 7 (n levels)";
  }
  if (!HasNul(decision.reason)) return "decision.reason has no NUL";
  return "";
}

std::string Check(const wire::Waiting& message) {
  return HasNul(message.text) ? "" : "Waiting.text has no NUL";
}

std::string Check(const wire::Attached& message) {
  if (message.step_deadline_ms == 0 ||
      message.step_deadline_ms > kMaxDeadlineMs) {
    return "Attached.step_deadline_ms is " +
           std::to_string(message.step_deadline_ms) + ", allowed 1 to " +
           std::to_string(kMaxDeadlineMs);
  }
  if (!HasNul(message.agent)) return "Attached.agent has no NUL";
  if (!HasNul(message.site)) return "Attached.site has no NUL";
  return CheckDecision(message.decision);
}

std::string Check(const wire::Resubmit& message) {
  if (message.attempt < 2) return "Resubmit.attempt is below 2";
  return HasNul(message.text) ? "" : "Resubmit.text has no NUL";
}

std::string Check(const wire::Written& message) {
  return message.attempt < 1 ? "Written.attempt is 0" : "";
}

std::string Check(const wire::Committed& message) {
  return CheckDecision(message.next);
}

std::string Check(const wire::Failed& message) {
  const auto code = static_cast<uint32_t>(message.code);
  if (code < 1 || code > 8) {
    return "Failed.code is " + std::to_string(code) + ", allowed 1 to 8";
  }
  return HasNul(message.text) ? "" : "Failed.text has no NUL";
}

std::string Check(const wire::MakeId&) { return ""; }

std::string Check(const wire::Open& message) {
  if (message.ranks < 2 || message.rank >= message.ranks) {
    return "Open names rank " + std::to_string(message.rank) + " of " +
           std::to_string(message.ranks);
  }
  return "";
}

std::string Check(const wire::BucketWord&) { return ""; }

std::string Check(const wire::Close& message) {
  return HasNul(message.text) ? "" : "Close.text has no NUL";
}

template <typename Message>
std::string Read(const void* data, size_t bytes, AgentPacket* packet) {
  if (bytes != sizeof(Message)) {
    return "a packet has " + std::to_string(bytes) + " bytes, its kind " +
           std::to_string(sizeof(Message));
  }
  Message message;
  std::memcpy(&message, data, sizeof(message));
  std::string wrong = Check(message);
  if (wrong.empty()) *packet = message;
  return wrong;
}

}  // namespace

std::string ParsePacket(const void* data, size_t bytes, AgentPacket* packet) {
  wire::Header header;
  if (bytes < sizeof(header)) {
    return "a packet has " + std::to_string(bytes) +
           " bytes, less than a header";
  }
  std::memcpy(&header, data, sizeof(header));
  if (header.bytes != bytes) {
    return "a packet has " + std::to_string(bytes) +
           " bytes, its header says " + std::to_string(header.bytes);
  }
  switch (header.kind) {
    case wire::Kind::kWaiting:
      return Read<wire::Waiting>(data, bytes, packet);
    case wire::Kind::kAttached:
      return Read<wire::Attached>(data, bytes, packet);
    case wire::Kind::kResubmit:
      return Read<wire::Resubmit>(data, bytes, packet);
    case wire::Kind::kWritten:
      return Read<wire::Written>(data, bytes, packet);
    case wire::Kind::kCommitted:
      return Read<wire::Committed>(data, bytes, packet);
    case wire::Kind::kFailed:
      return Read<wire::Failed>(data, bytes, packet);
    case wire::Kind::kMakeId:
      return Read<wire::MakeId>(data, bytes, packet);
    case wire::Kind::kOpen:
      return Read<wire::Open>(data, bytes, packet);
    case wire::Kind::kGo:
    case wire::Kind::kTaken:
    case wire::Kind::kByHost:
      return Read<wire::BucketWord>(data, bytes, packet);
    case wire::Kind::kClose:
      return Read<wire::Close>(data, bytes, packet);
    default:
      return "a packet is of kind " +
             std::to_string(static_cast<uint32_t>(header.kind)) +
             ", which an agent does not send";
  }
}

}  // namespace pactrain::trainer
