#include "trainer/nccl/communicator.h"

#include <dlfcn.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cuda/fake_driver.h"
#include "trainer/nccl/fake_nccl.h"

namespace pactrain::trainer::nccl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Done = Communicator::Done;
using Outcome = Communicator::Outcome;

constexpr char kDriver[] = "trainer/cuda/libfake_cuda.so";
constexpr char kNccl[] = "trainer/nccl/libfake_nccl.so";
constexpr std::chrono::seconds kBound{60};

TEST(LibraryTest, OnlyWhatTheProcessHasLoadedIsTaken) {
  EXPECT_THAT(std::get<std::string>(Library::Find("libnccl-of-nobody.so.2")),
              HasSubstr("libnccl-of-nobody.so.2 is not loaded"));
}

TEST(LibraryTest, VersionsThatHangAreRefused) {
  EXPECT_THAT(Refusal(22601), HasSubstr("NCCL 2.26.1 is older than 2.26.2"));
  EXPECT_EQ(Refusal(22602), "");
  EXPECT_EQ(Refusal(22802), "");
  EXPECT_THAT(Refusal(22803), HasSubstr("2.28.3 to 2.28.8"));
  EXPECT_THAT(Refusal(22808), HasSubstr("NCCL 2.28.8"));
  EXPECT_EQ(Refusal(22809), "");
}

class CommunicatorTest : public ::testing::Test {
 protected:
  CommunicatorTest() {
    void* driver = dlopen(kDriver, RTLD_NOW | RTLD_NODELETE);
    void* nccl = dlopen(kNccl, RTLD_NOW | RTLD_NODELETE);
    EXPECT_NE(driver, nullptr) << dlerror();
    EXPECT_NE(nccl, nullptr) << dlerror();
    *Symbol<cuda::FakeDriverOf>(driver, cuda::kFakeDriverOf)() = {};
    Symbol<void(cuda::FakeQuery*)>(driver, "pactrain_fake_query_by")(
        Symbol<cuda::FakeQuery>(nccl, kFakeNcclQuery));
    fake_ = Symbol<FakeNcclOf>(nccl, kFakeNcclOf)();
    *fake_ = FakeNccl();
    setup_.driver = std::get<std::shared_ptr<const cuda::Driver>>(
        cuda::Driver::Load(kDriver));
    setup_.driver->calls().cuCtxGetCurrent(&setup_.context);
  }
  template <typename Function>
  static Function* Symbol(void* library, const char* name) {
    return reinterpret_cast<Function*>(dlsym(library, name));
  }

  // Ranks with a GPU each.
  void Make(int ranks) {
    auto library = Library::Find();
    ASSERT_TRUE(std::holds_alternative<std::shared_ptr<const Library>>(library))
        << std::get<std::string>(library);
    setup_.library = std::get<std::shared_ptr<const Library>>(library);
    for (int rank = 0; rank < ranks; ++rank) {
      comms_.push_back(
          std::make_unique<Communicator>(setup_, [this] { Wake(); }));
    }
  }
  void Open(int ranks = 2) {
    Make(ranks);
    comms_[0]->MakeId();
    const Outcome made = Next(0);
    ASSERT_EQ(made.what, Done::kId) << made.text;
    for (int rank = 0; rank < ranks; ++rank) {
      comms_[rank]->Open(made.id, ranks, rank);
    }
  }
  void OpenAll(int ranks = 2) {
    Open(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Outcome opened = Next(rank);
      ASSERT_EQ(opened.what, Done::kOpened) << opened.text;
    }
  }
  void Reduce(int rank) {
    comms_[rank]->Reduce({.in = in_[rank].data(),
                          .out = out_[rank].data(),
                          .elements = in_[rank].size(),
                          .stream = &in_[rank]});
  }

  Outcome Next(int rank) {
    std::unique_lock<std::mutex> lock(mu_);
    std::optional<Outcome> outcome;
    const auto end = std::chrono::steady_clock::now() + kBound;
    bool came = false;
    while (!came && std::chrono::steady_clock::now() < end) {
      changed_.wait_for(lock, std::chrono::milliseconds(1), [&] {
        outcome = comms_[rank]->Take();
        return came = outcome.has_value();
      });
    }
    EXPECT_TRUE(came) << "nothing came of rank " << rank;
    return came ? *outcome : Outcome();
  }
  // It may be called while Next() takes: the bound of a look makes up for it.
  void Wake() { changed_.notify_all(); }

  FakeNccl* fake_;
  nccl::Setup setup_;
  std::vector<std::vector<float>> in_ = {{1, 2, 3}, {10, 20, 30}};
  std::vector<std::vector<float>> out_ = {{0, 0, 0}, {0, 0, 0}};
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Communicator>> comms_;
};

TEST_F(CommunicatorTest, RanksGetTheSumOfAll) {
  OpenAll();
  for (int round = 0; round < 3; ++round) {
    for (int rank : {0, 1}) Reduce(rank);
    for (int rank : {0, 1}) {
      const Outcome reduced = Next(rank);
      EXPECT_EQ(reduced.what, Done::kReduced) << reduced.text;
      EXPECT_THAT(out_[rank], ElementsAre(11, 22, 33));
    }
    in_ = out_ = {{1, 2, 3}, {10, 20, 30}};
  }
}

TEST_F(CommunicatorTest, OneToEightRanksGetTheSumOfAll) {
  for (const int ranks : {1, 3, 8}) {
    comms_.clear();
    in_.assign(ranks, {1, 2, 3});
    out_.assign(ranks, {0, 0, 0});
    OpenAll(ranks);
    for (int rank = 0; rank < ranks; ++rank) Reduce(rank);
    const auto sum = static_cast<float>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(Next(rank).what, Done::kReduced) << rank << " of " << ranks;
      EXPECT_THAT(out_[rank], ElementsAre(sum, 2 * sum, 3 * sum));
    }
  }
}

TEST_F(CommunicatorTest, ACallThatFailsIsSaid) {
  *fake_ = {.fault = "error", .rank = 1};
  OpenAll();
  for (int rank : {0, 1}) Reduce(rank);
  const Outcome failed = Next(1);
  EXPECT_EQ(failed.what, Done::kFailed);
  EXPECT_EQ(failed.text,
            "ncclAllReduce: unhandled cuda error (1): the stand-in was told to "
            "fail");
  // The other one's kernel waits for it, until it is told to stop.
  comms_[0]->Stop();
  EXPECT_EQ(Next(0).what, Done::kStopped);
  EXPECT_EQ(comms_[0]->QueryStream(&in_[0]), 0);
}

TEST_F(CommunicatorTest, AnErrorThatComesLateIsSaid) {
  *fake_ = {.fault = "late", .rank = 0};
  OpenAll();
  for (int rank : {0, 1}) Reduce(rank);
  EXPECT_THAT(Next(0).text, HasSubstr("remote process exited (6)"));
  for (int rank : {0, 1}) comms_[rank]->Stop();
  for (int rank : {0, 1}) EXPECT_EQ(Next(rank).what, Done::kStopped);
}

TEST_F(CommunicatorTest, WhatIsInProgressForEverCanBeStopped) {
  for (const char* fault : {"progress", "kernel"}) {
    *fake_ = {.fault = fault, .rank = 1};
    comms_.clear();
    OpenAll();
    for (int rank : {0, 1}) Reduce(rank);
    for (int rank : {0, 1}) comms_[rank]->Stop();
    for (int rank : {0, 1}) {
      EXPECT_EQ(Next(rank).what, Done::kStopped) << fault;
      EXPECT_EQ(comms_[rank]->QueryStream(&in_[rank]), 0);
    }
  }
}

TEST_F(CommunicatorTest, AnOpenThatFailsIsSaid) {
  *fake_ = {.fault = "open", .rank = 1};
  Open();
  EXPECT_THAT(Next(1).text, HasSubstr("ncclCommInitRankConfig: unhandled"));
  comms_[0]->Stop();
  EXPECT_EQ(Next(0).what, Done::kStopped);
}

TEST_F(CommunicatorTest, OneThatNeverOpensIsAborted) {
  *fake_ = {.fault = "open_progress", .rank = 1};
  Open();
  for (int rank : {0, 1}) comms_[rank]->Stop();
  EXPECT_EQ(Next(1).what, Done::kStopped);
}

TEST_F(CommunicatorTest, OneThatHangsWhileItIsRevokedOrAbortedIsLeftBehind) {
  *fake_ = {.fault = "revoke", .rank = 1};
  OpenAll();
  comms_[1]->Stop();
  comms_.clear();  // Returns, within its bound.
  Make(2);
  comms_[0]->MakeId();
  comms_[1]->Open(Next(0).id, 2, 1);  // And nobody else does.
  comms_[1]->Stop();
  comms_.clear();
}

TEST_F(CommunicatorTest, OneThatHangsInACallIsLeftBehind) {
  *fake_ = {.fault = "call", .rank = 1};
  OpenAll();
  for (int rank : {0, 1}) Reduce(rank);
  for (int rank : {0, 1}) comms_[rank]->Stop();
  EXPECT_EQ(Next(0).what, Done::kStopped);
  comms_.clear();  // Returns, within its bound.
}

}  // namespace
}  // namespace pactrain::trainer::nccl
