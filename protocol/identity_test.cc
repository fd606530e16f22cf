#include "protocol/identity.h"

#include "base/status_matchers.h"

namespace pactrain::protocol {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

TEST(Identity, ReadsBackWhatItSays) {
  for (const Identity& identity :
       {Identity{Role::kAgent, "node-1"}, Identity{Role::kCoordinator, ""},
        Identity{Role::kOperator, ""}, Identity{Role::kReader, ""},
        Identity{Role::kOperator, "ann"}, Identity{Role::kReader, "bob"},
        Identity{Role::kAgent, "node-1..vision", "vision"},
        Identity{Role::kOperator, "", "vision"},
        Identity{Role::kReader, "bob", "vision"}}) {
    ASSERT_OK_AND_ASSIGN(const Identity read,
                         IdentityOf({identity.ToString()}));
    EXPECT_EQ(read, identity) << identity.ToString();
  }
  EXPECT_EQ((Identity{Role::kAgent, "node-1"}).ToString(),
            "spiffe://pactrain/agent/node-1");
  const Identity bound{Role::kAgent, "a..vision", "vision"};
  EXPECT_EQ(bound.ToString(), "spiffe://vision.job.pactrain/agent/a..vision");
  EXPECT_EQ(bound.Short(), "job/vision/agent/a..vision");
}

TEST(Identity, sec_AnAgentOfOneJobHasANameThatNoOtherJobsHas) {
  EXPECT_EQ(AgentNameOf("a", ""), "a");
  EXPECT_EQ(AgentNameOf("a", "vision"), "a..vision");
  EXPECT_EQ(AgentNameOf("a..vision", "vision"), "a..vision");
  for (const char* uri :
       {"spiffe://vision.job.pactrain/agent/a",
        "spiffe://vision.job.pactrain/agent/a.vision",
        "spiffe://vision.job.pactrain/agent/..vision",
        "spiffe://n.job.pactrain/agent/a..vision",
        // Else "a..b..c" were of two jobs.
        "spiffe://b..c.job.pactrain/agent/a..b..c",
        "spiffe://.job.pactrain/operator", "spiffe://job.pactrain/operator",
        "spiffe://vision.pactrain/operator",
        "spiffe://pactrain.job.pactrain@/operator",
        "spiffe://pactrain:1/operator"}) {
    EXPECT_FALSE(IdentityOf({uri}).ok()) << uri;
  }
  EXPECT_FALSE(CheckBoundJob("--job", "b..c").ok());
  EXPECT_FALSE(CheckBoundJob("--job", "B").ok());
  EXPECT_OK(CheckBoundJob("--job", "b.c"));
}

TEST(Identity, sec_UriOfAnotherFormIsNobody) {
  for (const char* uri :
       {"", "spiffe://pactrain", "spiffe://pactrain/",
        "spiffe://other/operator", "SPIFFE://pactrain/operator",
        "spiffe://pactrain/operator/", "spiffe://pactrain/operator ",
        "spiffe://pactrain/agent", "spiffe://pactrain/agent/",
        "spiffe://pactrain/agent/a/b", "spiffe://pactrain/agent/A",
        "spiffe://pactrain/agent/../operator", "spiffe://pactrain/admin",
        "spiffe://pactrain/coordinator/a", "spiffe://pactrain/operators",
        "spiffe://pactrain/operator/A", "spiffe://pactrain/reader/a/b",
        "https://pactrain/operator"}) {
    EXPECT_THAT(IdentityOf({uri}),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(uri)))
        << uri;
  }
}

TEST(Identity, sec_NoUriOrTwoAreNobody) {
  EXPECT_THAT(IdentityOf({}), StatusIs(absl::StatusCode::kUnauthenticated,
                                       HasSubstr("has 0 URIs")));
  const std::string uri = Identity{Role::kOperator, ""}.ToString();
  EXPECT_THAT(
      IdentityOf({uri, uri}),
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("has 2 URIs")));
}

TEST(Identity, CheckNamesWhoCameAndWhoShouldHave) {
  const Identity a{Role::kAgent, "a"}, b{Role::kAgent, "b"};
  EXPECT_OK(CheckIdentity({a.ToString()}, a));
  EXPECT_THAT(CheckIdentity({b.ToString()}, a),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("is of spiffe://pactrain/agent/b, not of "
                                 "spiffe://pactrain/agent/a")));
}

}  // namespace
}  // namespace pactrain::protocol
