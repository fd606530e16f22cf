#include "agent/local/packet.h"

#include <vector>

#include "base/status_matchers.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;

using ::testing::HasSubstr;

wire::Hello GoodHello() {
  wire::Hello hello = {};
  hello.header = {wire::Kind::kHello, sizeof(hello)};
  hello.version = wire::kVersion;
  return hello;
}

wire::Submit GoodSubmit() {
  wire::Submit submit = {};
  submit.header = {wire::Kind::kSubmit, sizeof(submit)};
  submit.mode = submit.op = submit.dtype = 1;
  return submit;
}

wire::Vote GoodVote() {
  wire::Vote vote = {};
  vote.header = {wire::Kind::kVote, sizeof(vote)};
  return vote;
}

template <typename Message>
absl::StatusOr<TrainerPacket> Parse(const Message& message) {
  return ParseTrainerPacket(absl::MakeConstSpan(
      reinterpret_cast<const uint8_t*>(&message), sizeof(message)));
}

template <typename Message>
void ExpectRefused(const Message& message, const std::string& field) {
  EXPECT_THAT(Parse(message), base::StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr(field)));
}

TEST(ParseTrainerPacket, ReadsEveryKind) {
  ASSERT_OK_AND_ASSIGN(TrainerPacket packet, Parse(GoodHello()));
  EXPECT_TRUE(std::holds_alternative<wire::Hello>(packet));
  ASSERT_OK_AND_ASSIGN(packet, Parse(GoodSubmit()));
  EXPECT_TRUE(std::holds_alternative<wire::Submit>(packet));
  ASSERT_OK_AND_ASSIGN(packet, Parse(GoodVote()));
  EXPECT_TRUE(std::holds_alternative<wire::Vote>(packet));
  wire::Detach detach = {{wire::Kind::kDetach, sizeof(detach)}};
  ASSERT_OK_AND_ASSIGN(packet, Parse(detach));
  EXPECT_TRUE(std::holds_alternative<wire::Detach>(packet));
}

TEST(ParseTrainerPacket, RefusesEveryTruncation) {
  const std::string whole = PacketOf(GoodSubmit());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::string cut = whole.substr(0, bytes);
    // Also when the header tells the same lie.
    for (bool lie : {false, true}) {
      const uint32_t claimed = static_cast<uint32_t>(bytes);
      if (lie && bytes >= sizeof(wire::Header)) {
        std::memcpy(cut.data() + offsetof(wire::Header, bytes), &claimed, 4);
      }
      EXPECT_FALSE(ParseTrainerPacket(
                       absl::MakeConstSpan(
                           reinterpret_cast<const uint8_t*>(cut.data()), bytes))
                       .ok());
    }
  }
}

TEST(ParseTrainerPacket, RefusesOversizedPackets) {
  std::vector<uint8_t> packet(wire::kMaxMessage + 1);
  EXPECT_THAT(ParseTrainerPacket(packet),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("allowed are 8 to 8192")));
}

TEST(ParseTrainerPacket, RefusesTextsThatDoNotEnd) {
  const auto fill = [](auto& text) { std::memset(text, 'x', sizeof(text)); };
  wire::Hello hello = GoodHello();
  fill(hello.job);
  ExpectRefused(hello, "Hello.job");
  hello = GoodHello();
  fill(hello.launch);
  ExpectRefused(hello, "Hello.launch");
  hello = GoodHello();
  fill(hello.site);
  ExpectRefused(hello, "Hello.site");
  hello = GoodHello();
  fill(hello.model_summary);
  ExpectRefused(hello, "Hello.model_summary");
  wire::Submit submit = GoodSubmit();
  fill(submit.violation_text);
  ExpectRefused(submit, "Submit.violation_text");
  wire::Vote vote = GoodVote();
  fill(vote.moved);
  ExpectRefused(vote, "Vote.moved");
}

wire::Keep GoodKeep() {
  wire::Keep keep = {};
  keep.header = {wire::Kind::kKeep, sizeof(keep)};
  keep.mask_digest = {5, 6};
  keep.count = 1;
  keep.parameters[0] = {12, 40, "fc.weight"};
  keep.others = 2;
  keep.others_kept = 3;
  keep.others_elements = 4;
  return keep;
}

TEST(ParseTrainerPacket, WhatAParameterKeepsComesAsWords) {
  ASSERT_OK_AND_ASSIGN(TrainerPacket packet, Parse(GoodKeep()));
  EXPECT_EQ(
      std::get<protocol::KeepByParameter>(packet),
      (protocol::KeepByParameter{{5, 6}, {{"fc.weight", 12, 40}}, 2, 3, 4}));
}

TEST(ParseTrainerPacket, sec_RefusesABadKeep) {
  wire::Keep keep = GoodKeep();
  keep.count = wire::kKeepParameters + 1;
  EXPECT_THAT(Parse(keep), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("Keep.count is 101")));
  keep = GoodKeep();
  std::memset(keep.parameters[0].name, 'x', sizeof(keep.parameters[0].name));
  EXPECT_THAT(Parse(keep), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("Keep.name has no NUL")));
  keep = GoodKeep();
  keep.parameters[0].name[0] = '\n';
  EXPECT_THAT(Parse(keep), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("not all printable")));
  keep = GoodKeep();
  keep.parameters[0].kept = 41;
  EXPECT_THAT(Parse(keep), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("keeps 41 of 40")));
}

TEST(ParseTrainerPacket, sec_RefusesABadDevicePath) {
  wire::DevicePath path = {};
  path.header = {wire::Kind::kDevicePath, sizeof(path)};
  path.path = 3;
  std::strcpy(path.reason, "asked for");
  EXPECT_OK(Parse(path));
  path.path = 4;
  ExpectRefused(path, "DevicePath.path is 4");
  path.path = 1;
  path.reason[0] = '\x1b';
  ExpectRefused(path, "DevicePath.reason has 9 bytes, not all printable");
  std::memset(path.reason, 'x', sizeof(path.reason));
  ExpectRefused(path, "DevicePath.reason has no NUL");
}

TEST(ParseTrainerPacket, RefusesWordsThatCannotBePrinted) {
  wire::Vote vote = GoodVote();
  vote.moved[0] = '\x1b';
  ExpectRefused(vote, "Vote.moved has 1 bytes, not all printable");
}

TEST(ParseTrainerPacket, RefusesAnotherVersionAndSaysWhatToDo) {
  wire::Hello hello = GoodHello();
  hello.version = wire::kVersion + 1;
  ExpectRefused(hello, "install the same release");
}

TEST(ParseTrainerPacket, RefusesValuesOutOfRange) {
  wire::Submit submit = GoodSubmit();
  submit.mode = 4;
  ExpectRefused(submit, "Submit.mode is 4");
  submit = GoodSubmit();
  submit.op = 0;
  ExpectRefused(submit, "Submit.op is 0");
  submit = GoodSubmit();
  submit.dtype = 3;
  ExpectRefused(submit, "Submit.dtype is 3");
  submit = GoodSubmit();
  submit.bucket = 4096;
  ExpectRefused(submit, "Submit.bucket is 4096");
  submit = GoodSubmit();
  submit.filled = submit.elements + 1;
  ExpectRefused(submit, "Submit.filled is 1, allowed are 0 to 0");
  submit = GoodSubmit();
  submit.elements = ~0ull;
  ExpectRefused(submit, "Submit.elements");
  submit = GoodSubmit();
  submit.last = 2;
  ExpectRefused(submit, "Submit.last is 2");
}

TEST(ParseTrainerPacket, sec_limits_BucketsOfALayout) {
  wire::Submit submit = GoodSubmit();
  submit.bucket = protocol::kMaxBuckets - 1;
  EXPECT_OK(Parse(submit));
  submit.bucket = protocol::kMaxBuckets;
  ExpectRefused(submit, "Submit.bucket is 4096");
}

TEST(ParseTrainerPacket, sec_limits_ElementsOfABucket) {
  wire::Submit submit = GoodSubmit();
  submit.elements = protocol::kMaxElements;
  EXPECT_OK(Parse(submit));
  submit.elements = protocol::kMaxElements + 1;
  ExpectRefused(submit, "Submit.elements is 2147483648");
}

TEST(ParseTrainerPacket, RefusesWhatOnlyAgentsSend) {
  wire::Detach detach = {{wire::Kind::kCommitted, sizeof(detach)}};
  ExpectRefused(detach, "kind 35");
}

}  // namespace
}  // namespace pactrain::agent
