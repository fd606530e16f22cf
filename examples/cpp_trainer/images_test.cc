#include "examples/cpp_trainer/images.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::example {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of two images to train on and one to test on, of 1 x 1 x 2 pixels.
struct File {
  std::string magic = "PTIMAGES";
  std::array<uint32_t, 6> header = {2, 1, 1, 1, 2, 10};
  std::vector<float> train = {0, 0.25, 0.5, 1};
  std::vector<uint8_t> train_labels = {3, 9};
  std::vector<float> test = {-1, 1};
  std::vector<uint8_t> test_labels = {0};
  std::string rest = {};
};

template <typename T>
void Append(std::ofstream& file, const T& values) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(values[0])));
}

std::string Write(const File& content) {
  const std::string path = testing::TempDir() + "/images";
  std::ofstream file(path, std::ios::binary);
  Append(file, content.magic);
  Append(file, content.header);
  Append(file, content.train);
  Append(file, content.train_labels);
  Append(file, content.test);
  Append(file, content.test_labels);
  Append(file, content.rest);
  return path;
}

std::string ErrorOf(const File& content) {
  try {
    ReadImages(Write(content));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ImagesTest, ReadsBothParts) {
  const Images images = ReadImages(Write({}));
  EXPECT_EQ(images.width, 2u);
  EXPECT_EQ(images.classes, 10u);
  EXPECT_THAT(images.train.pixels, ElementsAre(0, 0.25, 0.5, 1));
  EXPECT_THAT(images.train.labels, ElementsAre(3, 9));
  EXPECT_THAT(images.test.pixels, ElementsAre(-1, 1));
  EXPECT_THAT(images.test.labels, ElementsAre(0));
}

TEST(ImagesTest, WhatIsNoSuchFileIsRefusedWithTheWayToMakeOne) {
  const std::string text = ErrorOf({.magic = "PTSOUNDS"});
  EXPECT_THAT(text, HasSubstr("is not a file of images"));
  EXPECT_THAT(text, HasSubstr("examples/cpp_trainer/export_images.py"));
}

TEST(ImagesTest, AFileThatEndsEarlyOrGoesOnIsRefused) {
  EXPECT_THAT(ErrorOf({.test_labels = {}}), HasSubstr("ends too early"));
  EXPECT_THAT(ErrorOf({.rest = "x"}), HasSubstr("goes on after its images"));
}

TEST(ImagesTest, PixelsThatAreNotFiniteAreRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::string what = "has pixels that are no finite numbers";
  EXPECT_THAT(ErrorOf({.train = {0, kNan, 0, 0}}), HasSubstr(what));
  EXPECT_THAT(ErrorOf({.test = {kInf, 0}}), HasSubstr(what));
}

TEST(ImagesTest, LabelsBeyondTheClassesAreRefused) {
  EXPECT_THAT(ErrorOf({.train_labels = {3, 10}}),
              HasSubstr("has a label 10 of 10 classes"));
}

}  // namespace
}  // namespace pactrain::example
