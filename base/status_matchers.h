// GoogleTest helpers for absl::Status: EXPECT_OK(x), ASSERT_OK_AND_ASSIGN(v,
// x), EXPECT_THAT(x, StatusIs(code, message_matcher)).
#ifndef PACTRAIN_BASE_STATUS_MATCHERS_H_
#define PACTRAIN_BASE_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::base {

inline const absl::Status& GetStatus(const absl::Status& s) { return s; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& s) {
  return s.status();
}

MATCHER_P2(StatusIs, code, message, "") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << "which is " << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

MATCHER(IsOk, "is OK") {
  *result_listener << "which is " << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

}  // namespace pactrain::base

#define EXPECT_OK(expr) EXPECT_THAT((expr), ::pactrain::base::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::pactrain::base::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_INNER(PT_CONCAT(pt_test_statusor_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_INNER(var, lhs, expr) \
  auto var = (expr);                               \
  ASSERT_TRUE(var.ok()) << var.status();           \
  lhs = std::move(var).value()

#endif  // PACTRAIN_BASE_STATUS_MATCHERS_H_
