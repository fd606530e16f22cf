#include "protocol/proto_convert.h"

#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/proto_check.h"
#include "protocol/test_messages.h"

namespace pactrain::protocol {
namespace {

// Two equal messages have equal wire forms, and those are easy to compare.
TEST(ProtoConvert, AgentMessagesSurviveTheRoundTrip) {
  for (const AgentMessage& message : AgentMessages()) {
    const v1::AgentMessage proto = ToProto(message);
    ASSERT_OK_AND_ASSIGN(const AgentMessage back, FromProto(proto));
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(ToProto(back).DebugString(), proto.DebugString());
  }
}

TEST(ProtoConvert, CoordinatorMessagesSurviveTheRoundTrip) {
  for (const CoordinatorMessage& message : CoordinatorMessages()) {
    const v1::CoordinatorMessage proto = ToProto(message);
    ASSERT_OK_AND_ASSIGN(const CoordinatorMessage back, FromProto(proto));
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(ToProto(back).DebugString(), proto.DebugString());
  }
}

TEST(ProtoConvert, AGenerationSurvivesTheRoundTrip) {
  const Generation generation = MakeGeneration();
  ASSERT_OK_AND_ASSIGN(const Generation back, FromProto(ToProto(generation)));
  EXPECT_EQ(back, generation);
}

TEST(ProtoConvert, AGenerationsKeySurvivesTheRoundTrip) {
  const CoordinatorMessage message =
      StartGeneration{MakeGeneration(), MakeKey()};
  ASSERT_OK_AND_ASSIGN(const CoordinatorMessage back,
                       FromProto(ToProto(message)));
  EXPECT_TRUE(std::get<StartGeneration>(back).key == MakeKey());
}

TEST(ProtoConvert, EveryCodecSurvives) {
  for (int number = 1; number <= static_cast<int>(kLastCodec); ++number) {
    Generation generation = MakeGeneration();
    generation.decision.codec = static_cast<Codec>(number);
    generation.decision.mode =
        IsLevels(generation.decision.codec) ? Mode::kTernary : Mode::kCompacted;
    ASSERT_OK_AND_ASSIGN(Generation back, FromProto(ToProto(generation)));
    EXPECT_EQ(back, generation);
  }
}

TEST(ProtoConvert, WhatAnAgentHasOfTrainersSurvives) {
  const AgentMessage message = AgentMessages()[2];
  ASSERT_OK_AND_ASSIGN(const AgentMessage back, FromProto(ToProto(message)));
  EXPECT_EQ(std::get<LocalTrainers>(back), std::get<LocalTrainers>(message));
}

TEST(ProtoConvert, LongAndOddTextsAreMadeFit) {
  EXPECT_EQ(WriteText("abc", 2), "ab");
  EXPECT_EQ(WriteText("a\xffz", 9), "a?z");
  EXPECT_EQ(WriteText("\xc3\xa4\xc3\xa4", 3),
            "\xc3\xa4");                           // Not half a character.
  EXPECT_EQ(WriteText("\xc0\x80", 9), "??");       // Overlong.
  EXPECT_EQ(WriteText("\xed\xa0\x80", 9), "???");  // A surrogate.
  EXPECT_EQ(WriteText("\xf0\x9f\x98\x80!", 9), "\xf0\x9f\x98\x80!");
  const CoordinatorMessage long_reason =
      EndGeneration{kGroup, 4, std::string(9000, '\xe4')};
  const v1::CoordinatorMessage proto = ToProto(long_reason);
  EXPECT_OK(FromProto(proto));
  v1::CoordinatorMessage parsed;
  EXPECT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
}

// Bytes of good messages with some flipped: an error or a good message, no
// crash.
TEST(ProtoConvert, SpoiltBytesNeverCrash) {
  std::mt19937 random(7);
  int parsed = 0, accepted = 0;
  const auto spoil = [&](std::string bytes) {
    for (int flips = 1 + random() % 3; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    return bytes;
  };
  for (int round = 0; round < 3000; ++round) {
    const auto agent = AgentMessages();
    const auto coordinator = CoordinatorMessages();
    v1::AgentMessage a;
    if (a.ParseFromString(
            spoil(ToProto(agent[round % agent.size()]).SerializeAsString()))) {
      ++parsed;
      accepted += FromProto(a).ok();
    }
    v1::CoordinatorMessage c;
    if (c.ParseFromString(
            spoil(ToProto(coordinator[round % 7]).SerializeAsString()))) {
      ++parsed;
      accepted += FromProto(c).ok();
    }
  }
  EXPECT_GT(parsed, 300);
  EXPECT_GT(parsed, accepted);
}

}  // namespace
}  // namespace pactrain::protocol
