#include "protocol/identity.h"

#include "base/status_matchers.h"

namespace pactrain::protocol {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

TEST(Identity, ReadsBackWhatItSays) {
  for (const Identity& identity :
       {Identity{Role::kAgent, "node-1"}, Identity{Role::kCoordinator, ""},
        Identity{Role::kOperator, ""}, Identity{Role::kReader, ""}}) {
    ASSERT_OK_AND_ASSIGN(const Identity read,
                         IdentityOf({identity.ToString()}));
    EXPECT_EQ(read, identity) << identity.ToString();
  }
  EXPECT_EQ((Identity{Role::kAgent, "node-1"}).ToString(),
            "spiffe://pactrain/agent/node-1");
}

TEST(Identity, sec_UriOfAnotherFormIsNobody) {
  for (const char* uri :
       {"", "spiffe://pactrain", "spiffe://pactrain/",
        "spiffe://other/operator", "SPIFFE://pactrain/operator",
        "spiffe://pactrain/operator/", "spiffe://pactrain/operator ",
        "spiffe://pactrain/agent", "spiffe://pactrain/agent/",
        "spiffe://pactrain/agent/a/b", "spiffe://pactrain/agent/A",
        "spiffe://pactrain/agent/../operator", "spiffe://pactrain/admin",
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
