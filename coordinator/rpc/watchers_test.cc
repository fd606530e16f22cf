// Who may watch jobs when many do, through the server's calls.
#include <deque>
#include <map>

#include "coordinator/rpc/admin_service.h"
#include "coordinator/rpc/test_teams.h"
#include "gmock/gmock.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;

class WatchersTest : public TeamsFixture {
 protected:
  static constexpr size_t kAll = AdminService::kMaxWatchers;
  static constexpr size_t kOfOne = AdminService::kMaxWatchersOfOne;

  void SetUp() override {
    for (size_t i = 0; i <= kAll / kOfOne; ++i) {
      lists_.see.push_back(absl::StrCat("reader/r", i, "=vision"));
    }
    TeamsFixture::SetUp();
    Form();
  }
  ~WatchersTest() override {
    for (const auto& watch : open_) watch.context->TryCancel();
  }
  // It stays open if it is OK.
  grpc::Status Watch(const std::string& who) {
    auto& [count, stub] = stubs_[who];
    // A connection has room for no more.
    if (count++ % protocol::kMaxConcurrentStreams == 0) {
      stub = v1::Admin::NewStub(As(who));
    }
    v1::WatchJobRequest request;
    request.mutable_group()->set_job("vision");
    auto context = MakeContext();
    auto states = stub->WatchJob(context.get(), request);
    v1::WatchJobResponse state;
    if (!states->Read(&state)) return states->Finish();
    open_.push_back({std::move(context), std::move(states)});
    return grpc::Status::OK;
  }

  struct Open {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> states;
  };
  std::map<std::string, std::pair<int, std::unique_ptr<v1::Admin::Stub>>>
      stubs_;
  std::deque<Open> open_;
};

TEST_F(WatchersTest, sec_limits_WatchersOfOneIdentity) {
  for (size_t i = 0; i < kOfOne; ++i) ASSERT_TRUE(Watch("reader/r0").ok()) << i;
  const grpc::Status more = Watch("reader/r0");
  EXPECT_EQ(more.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(more.error_message(),
              HasSubstr("spiffe://pactrain/reader/r0 holds 16 of the 64 "
                        "watches, as many as one may; end one"));
  EXPECT_TRUE(Watch("reader/r1").ok());
  // Who it is stands in both logs.
  EXPECT_TRUE(log_.Has("refused WatchJob from 127.0.0.1"));
  EXPECT_THAT(Audit(), HasSubstr("call refused|spiffe://pactrain/reader/r0|"
                                 "vision|spiffe://pactrain/reader/r0 holds"));
}

TEST_F(WatchersTest, sec_limits_WatchersOfAll) {
  for (size_t i = 0; i < kAll; ++i) {
    ASSERT_TRUE(Watch(absl::StrCat("reader/r", i / kOfOne)).ok()) << i;
  }
  const std::string last = absl::StrCat("reader/r", kAll / kOfOne);
  const grpc::Status more = Watch(last);
  EXPECT_EQ(more.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(more.error_message(), HasSubstr("all 64 watches are taken"));
  EXPECT_THAT(more.error_message(),
              HasSubstr("spiffe://pactrain/reader/r0 (16)"));
  open_.front().context->TryCancel();
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(1);
  while (!Watch(last).ok()) ASSERT_LT(base::MonotonicNow(), end);
}

}  // namespace
}  // namespace pactrain::coordinator
