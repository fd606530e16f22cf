// The rule that C++ and Python trainers share: testdata/buckets.txt holds it.
#include "trainer/cpp/buckets.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/parameters.h"

namespace pactrain {
namespace {

using ::testing::HasSubstr;

constexpr char kFile[] = "trainer/cpp/testdata/buckets.txt";

// "3,4"; "()" has none.
template <typename Number>
std::vector<Number> Numbers(const std::string& text) {
  std::vector<Number> numbers;
  if (text == "()") return numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    numbers.push_back(static_cast<Number>(std::stoll(part)));
  }
  return numbers;
}

DType DTypeNamed(const std::string& name) {
  return name == "bfloat16" ? DType::kBfloat16 : DType::kFloat32;
}

// What is expected, as the lines of the file.
struct Case {
  std::string name;
  uint64_t cap = 0;
  std::vector<Parameter> parameters = {};
  std::string expected = {};
};

std::vector<Case> ReadCases() {
  std::vector<Case> cases;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      cases.push_back({.name = line.substr(5)});
    } else if (kind == "cap") {
      words >> cases.back().cap;
    } else if (kind == "parameter") {
      std::string name, dtype, shape, strides;
      words >> name >> dtype >> shape >> strides;
      cases.back().parameters.push_back({name, Numbers<int64_t>(shape),
                                         DTypeNamed(dtype),
                                         Numbers<int64_t>(strides)});
    } else if (kind == "bucket" || kind == "layout" || kind == "model") {
      cases.back().expected += line + "\n";
    }
  }
  return cases;
}

// The same for what this language makes of the parameters.
std::string Actual(const Case& given) {
  try {
    const ParameterTable table("Net", given.parameters);
    const Layout layout(table, given.cap);
    std::string text;
    for (const BucketLayout& bucket : layout.buckets()) {
      std::string indices;
      for (const size_t i : bucket.parameters) {
        indices += (indices.empty() ? "" : ",") + std::to_string(i);
      }
      text += "bucket " + indices + " " + std::to_string(bucket.elements) +
              (bucket.dtype == DType::kBfloat16 ? " bfloat16 " : " float32 ") +
              bucket.digest.ToString() + "\n";
    }
    return text + "layout " + layout.digest().ToString() + "\nmodel " +
           table.ModelDigest().ToString() + "\n";
  } catch (const InvalidArgument&) {
    return "layout none\nmodel none\n";
  }
}

TEST(BucketsTest, AreThoseOfThePythonClient) {
  const std::vector<Case> cases = ReadCases();
  ASSERT_GE(cases.size(), 10u) << "from " << kFile;
  for (const Case& given : cases) {
    EXPECT_EQ(Actual(given), given.expected) << given.name;
  }
}

TEST(LayoutTest, MoreBucketsThanAStepMayHaveAreRefused) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i <= Layout::kMaxBuckets; ++i) {
    parameters.push_back({.name = "w" + std::to_string(i), .shape = {1}});
  }
  try {
    const Layout layout(ParameterTable("Net", parameters), 4);
    FAIL() << layout.buckets().size();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("bucket_bytes is 4, which gives 4097 "
                                        "buckets; allowed are 1 to 4096."));
  }
  parameters.pop_back();
  EXPECT_EQ(Layout(ParameterTable("Net", parameters), 4).buckets().size(),
            Layout::kMaxBuckets);
}

TEST(ParameterTest, LiesInTheOrderOfItsIndicesUnlessStridesSayOtherwise) {
  const Parameter plain = {.name = "w", .shape = {4, 3, 2}};
  EXPECT_THAT(plain.BucketStrides(), ::testing::ElementsAre(6, 2, 1));
  const Parameter empty = {.name = "w", .shape = {4, 0, 2}};
  EXPECT_THAT(empty.BucketStrides(), ::testing::ElementsAre(2, 2, 1));
  const Parameter other = {"w", {4, 3}, DType::kFloat32, {1, 4}};
  EXPECT_THAT(other.BucketStrides(), ::testing::ElementsAre(1, 4));
}

}  // namespace
}  // namespace pactrain
