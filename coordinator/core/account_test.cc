#include "coordinator/core/account.h"

#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::Decision;
using protocol::Mode;

protocol::StepReport Report(uint64_t sent, uint64_t dense) {
  protocol::StepReport report;
  report.sent_bytes = sent;
  report.sent_kept_bytes = dense / 2;
  report.sent_dense_bytes = dense;
  return report;
}

Decision In(Mode mode, uint64_t version) {
  Decision decision;
  decision.mode = mode;
  decision.version = version;
  return decision;
}

constexpr absl::Duration kStart = absl::Seconds(100);

TEST(Account, BytesAreOfAllAgentsAndGenerations) {
  Account account;
  account.Add("a", Report(5, 90));
  account.Add("a", Report(10, 100));
  account.Add("b", Report(1, 10));
  account.BeginGeneration();
  account.Add("a", Report(100, 1000));
  const AccountSnapshot now = account.At(kStart);
  EXPECT_EQ(now.sent_bytes, 111);
  EXPECT_EQ(now.kept_bytes, 555);
  EXPECT_EQ(now.dense_bytes, 1110);
}

TEST(Account, SecondsSavedAreOfTheLinkThatTakesLongest) {
  Account account;
  protocol::StepReport report = Report(100, 1100);
  // Half of all bytes go over each; 500 were spared on the slow one.
  report.links = {{"fast", 300, 0, 1000, 0}, {"slow", 300, 0, 50, 0}};
  account.Add("a", report);
  EXPECT_DOUBLE_EQ(account.At(kStart).saved_seconds, 10);
  // All agents save at the same time.
  report.links = {{"slow", 300, 0, 1000, 0}};
  account.Add("b", report);
  EXPECT_DOUBLE_EQ(account.At(kStart).saved_seconds, 10);
}

TEST(Account, OfALinksRatesTheBestCountsForAllBytes) {
  Account account;
  protocol::StepReport report = Report(100, 1100);
  report.links = {{"x", 300, 0, 0, 0}};
  account.Add("a", report);
  EXPECT_EQ(account.At(kStart).saved_seconds, 0) << "no rate was measured";
  report.links = {{"x", 300, 0, 50, 0}};
  account.Add("a", report);
  EXPECT_DOUBLE_EQ(account.At(kStart).saved_seconds, 20);
  report.links = {{"x", 300, 0, 200, 0}};
  account.Add("a", report);
  report.links = {{"x", 300, 0, 100, 0}};
  account.Add("a", report);
  EXPECT_DOUBLE_EQ(account.At(kStart).saved_seconds, 5);
}

TEST(Account, WhatCostsMoreThanFullIsNotHidden) {
  Account account;
  protocol::StepReport report = Report(110, 100);
  report.links = {{"x", 110, 0, 10, 0}};
  account.Add("a", report);
  EXPECT_DOUBLE_EQ(account.At(kStart).saved_seconds, -1);
}

TEST(Account, TimeIsOfTheModeInForce) {
  Account account;
  account.Enter(In(Mode::kFull, 1), kStart);
  account.Enter(In(Mode::kTernary, 2), kStart + absl::Seconds(2));
  AccountSnapshot now = account.At(kStart + absl::Seconds(5));
  EXPECT_EQ(now.mode_seconds, (std::array<double, 3>{2, 0, 3}));
  account.Enter(std::nullopt, kStart + absl::Seconds(6));
  now = account.At(kStart + absl::Seconds(9));
  EXPECT_EQ(now.mode_seconds, (std::array<double, 3>{2, 0, 4}));
}

TEST(Account, AFallbackSendsMoreInOneGeneration) {
  Account account;
  account.Enter(In(Mode::kFull, 1), kStart);
  account.Enter(In(Mode::kTernary, 2), kStart);
  account.Enter(In(Mode::kCompacted, 3), kStart);
  account.Enter(In(Mode::kFull, 4), kStart);
  account.Enter(In(Mode::kCompacted, 5), kStart);
  account.Enter(std::nullopt, kStart);
  account.Enter(In(Mode::kFull, 1), kStart);
  EXPECT_EQ(account.At(kStart).fallbacks, (std::array<uint64_t, 3>{1, 0, 1}));
}

TEST(Account, AMeanOverASwitchIsOfNoMode) {
  Account account;
  const auto add = [&](uint64_t version, double seconds) {
    protocol::StepReport report;
    report.decision_version = version;
    report.interval_seconds = seconds;
    account.Add("a", report);
  };
  account.Enter(In(Mode::kFull, 1), kStart);
  add(1, 9);  // Maybe with what came before.
  add(1, 2);
  add(2, 5);
  account.Enter(In(Mode::kCompacted, 2), kStart);
  add(2, 1);
  add(2, 2);
  EXPECT_EQ(account.At(kStart).mode_interval_seconds,
            (std::array<double, 3>{2, 1.3, 0}));
}

TEST(Account, TheFirstMasksAreNoChange) {
  Account account;
  account.NoteMasks({1, 1});
  account.NoteMasks({1, 1});
  account.NoteMasks({2, 2});
  account.BeginGeneration();
  account.NoteMasks({1, 1});
  EXPECT_EQ(account.At(kStart).mask_changes, 1);
}

}  // namespace
}  // namespace pactrain::coordinator
