// Early return on an absl::Status that is not OK (Abseil 20220623 ships none).
#ifndef PACTRAIN_BASE_STATUS_MACROS_H_
#define PACTRAIN_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PT_CONCAT_INNER(a, b) a##b
#define PT_CONCAT(a, b) PT_CONCAT_INNER(a, b)

// Returns from the calling function when `expr` is not OK.
#define RETURN_IF_ERROR(expr)              \
  do {                                     \
    absl::Status pt_status = (expr);       \
    if (!pt_status.ok()) return pt_status; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, MakeX());
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_INNER(PT_CONCAT(pt_statusor_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(var, lhs, expr) \
  auto var = (expr);                           \
  if (!var.ok()) return var.status();          \
  lhs = std::move(var).value()

#endif  // PACTRAIN_BASE_STATUS_MACROS_H_
