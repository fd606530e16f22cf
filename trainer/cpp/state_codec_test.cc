// A state's bytes, against what the Python client wrote
// (testdata/state.txt).
#include "trainer/cpp/state_codec.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint8_t> FromPython() {
  std::ifstream file("trainer/cpp/testdata/state.txt");
  std::vector<uint8_t> bytes;
  for (std::string line; std::getline(file, line);) {
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      bytes.push_back(
          static_cast<uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
  }
  return bytes;
}

// The bytes of a state with this text and nothing behind it.
std::vector<uint8_t> WithText(const std::string& text) {
  std::vector<uint8_t> bytes(8);
  bytes[0] = static_cast<uint8_t>(text.size());
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

std::string ErrorOf(const std::vector<uint8_t>& bytes) {
  try {
    DecodeState(bytes);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::string ErrorOf(const std::string& text) { return ErrorOf(WithText(text)); }

TEST(StateCodecTest, ReadsWhatPythonWrote) {
  const StateValue state = DecodeState(FromPython());
  EXPECT_TRUE(state.At("none").is_none());
  EXPECT_TRUE(state.At("flags").AsList()[0].AsBool());
  EXPECT_EQ(state.At("whole"), StateValue::Tuple({-3, int64_t{1} << 62}));
  EXPECT_EQ(state.At("rate").AsNumber(), 0.1);
  const std::vector<StateValue>& edges = state.At("edges").AsList();
  EXPECT_TRUE(std::signbit(edges[1].AsNumber()));
  EXPECT_TRUE(std::isinf(edges[2].AsNumber()));
  EXPECT_EQ(edges[3].AsNumber(), 5e-324);
  EXPECT_EQ(state.At("text").AsString(), "ä \"\\\n€😀");
  ASSERT_NE(state.Find(3), nullptr);
  EXPECT_EQ(state.Find(3)->At("a").AsInt(), 1);
  const StateTensor& weights = state.At("tensors").At("w").AsTensor();
  EXPECT_EQ(weights.dtype, "float32");
  EXPECT_THAT(weights.shape, ElementsAre(2, 2));
  EXPECT_EQ(weights.bytes[15], 0xc0);  // -4, the last of them.
  EXPECT_THAT(state.At("tensors").At("n").AsTensor().shape, ElementsAre());
  EXPECT_THAT(state.At("tensors").At("empty").AsTensor().shape,
              ElementsAre(0, 3));
  EXPECT_THAT(state.At("tensors").At("b").AsTensor().bytes,
              ElementsAre(1, 0, 1));
}

TEST(StateCodecTest, WhatItWritesComesBack) {
  const StateValue state = DecodeState(FromPython());
  EXPECT_EQ(DecodeState(EncodeState(state)), state);
}

TEST(StateCodecTest, AsksForWhatIsThere) {
  const StateValue state = StateValue::Dict({{"a", 1}});
  EXPECT_EQ(state.At("a").AsNumber(), 1.0);
  EXPECT_THROW(state.At("b"), InvalidArgument);
  EXPECT_THROW(state.At("a").AsString(), InvalidArgument);
  EXPECT_THROW(state.AsTensor(), InvalidArgument);
}

TEST(StateCodecTest, RefusesWhatIsNestedTooDeeply) {
  StateValue value;
  for (int i = 0; i < 66; ++i) value = StateValue::List({std::move(value)});
  EXPECT_THROW(EncodeState(value), InvalidArgument);
  EXPECT_THAT(ErrorOf(std::string(150, '[')), HasSubstr("too many levels"));
}

TEST(StateCodecTest, RefusesWhatIsCutOff) {
  std::vector<uint8_t> bytes = FromPython();
  while (!bytes.empty()) {
    bytes.erase(bytes.end() - 8, bytes.end());
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("cannot be read"));
  }
}

TEST(StateCodecTest, SaysWhatItCannotRead) {
  EXPECT_THAT(ErrorOf("[1, [["), HasSubstr("no value at byte 6"));
  EXPECT_THAT(ErrorOf("[1, []] 2"), HasSubstr("something after the end"));
  EXPECT_THAT(ErrorOf("[\"\\ud800\", []]"), HasSubstr("half a character"));
  EXPECT_THAT(ErrorOf("[99999999999999999999, []]"),
              HasSubstr("a number over 64 bits"));
  EXPECT_THAT(ErrorOf("[1.5, []]"), HasSubstr("no ',' or ']'"));
  EXPECT_THAT(ErrorOf("[[\"float\", \"one\"], []]"),
              HasSubstr("a float is 'one'"));
  EXPECT_THAT(ErrorOf("[[\"set\", 1], []]"), HasSubstr("a part is a 'set'"));
  EXPECT_THAT(ErrorOf("[1, [[\"float32\", [-1]]]]"),
              HasSubstr("an impossible shape"));
  EXPECT_THAT(ErrorOf("[1, [[\"float32\", [4294967296, 4294967296]]]]"),
              HasSubstr("an impossible shape"));
  EXPECT_THAT(ErrorOf("[1, [[\"float32\", [1000]]]]"),
              HasSubstr("a tensor of 4000 bytes is cut off"));
  EXPECT_THAT(ErrorOf("[1, [[\"quint8\", [1]]]]"),
              HasSubstr("a tensor is quint8"));
}

TEST(StateCodecTest, ATensorIsUsedOnce) {
  EXPECT_THAT(ErrorOf("[[\"list\", [\"tensor\", 0], [\"tensor\", 0]], "
                      "[[\"bool\", [0]]]]"),
              HasSubstr("a tensor is missing"));
  EXPECT_THAT(ErrorOf("[[\"tensor\", -1], []]"),
              HasSubstr("a tensor is missing"));
}

}  // namespace
}  // namespace pactrain
