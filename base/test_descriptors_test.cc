#include "base/test_descriptors.h"

#include <unistd.h>

#include <cerrno>
#include <memory>

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

class Shape {
 public:
  virtual ~Shape() = default;
  virtual int Sides() const = 0;
};
class Triangle : public Shape {
 public:
  int Sides() const override { return 3; }
};

TEST(OneDescriptorLeftTest, OneAndNoMore) {
  const OneDescriptorLeft scarce;
  const int first = dup(STDIN_FILENO);
  EXPECT_GE(first, 0);
  EXPECT_EQ(dup(STDIN_FILENO), -1);
  EXPECT_EQ(errno, EMFILE);
  close(first);
}

// With UBSan: it looks at an object of a type that it has not met yet.
TEST(OneDescriptorLeftTest, ObjectsAreGoodWithoutDescriptors) {
  const std::unique_ptr<Shape> shape = std::make_unique<Triangle>();
  const OneDescriptorLeft scarce;
  const int first = dup(STDIN_FILENO);
  EXPECT_EQ(shape->Sides(), 3);
  close(first);
}

TEST(OneDescriptorLeftTest, AllAreBackAfterIt) {
  { const OneDescriptorLeft scarce; }
  const int first = dup(STDIN_FILENO);
  const int second = dup(STDIN_FILENO);
  EXPECT_GE(second, 0);
  close(first);
  close(second);
}

}  // namespace
}  // namespace pactrain::base
