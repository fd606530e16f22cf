#include "coordinator/core/grants.h"

#include "base/status_matchers.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::Identity;
using protocol::Role;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

const Identity kNode1{Role::kAgent, "node-1", ""};
const Identity kNode2{Role::kAgent, "node-2", ""};
const Identity kAnn{Role::kOperator, "ann", ""};
const Identity kBob{Role::kReader, "bob", ""};
const Identity kAnyOperator{Role::kOperator, "", ""};
const Identity kAnyReader{Role::kReader, "", ""};

Grants Of(const Grants::Lists& lists) { return *Grants::Of(lists, "p.yaml"); }

TEST(MatchesPattern, AStarStandsForAnyText) {
  for (const auto& [pattern, text] :
       std::vector<std::pair<std::string, std::string>>{{"a", "a"},
                                                        {"*", ""},
                                                        {"*", "a/b"},
                                                        {"a*", "a"},
                                                        {"a*c", "abbc"},
                                                        {"*a*a", "abaca"},
                                                        {"a**", "ab"}}) {
    EXPECT_TRUE(MatchesPattern(pattern, text)) << pattern << " " << text;
  }
  for (const auto& [pattern, text] :
       std::vector<std::pair<std::string, std::string>>{{"", "a"},
                                                        {"a", ""},
                                                        {"a", "ab"},
                                                        {"b*", "ab"},
                                                        {"*a*a", "abc"},
                                                        {"a.c", "abc"}}) {
    EXPECT_FALSE(MatchesPattern(pattern, text)) << pattern << " " << text;
  }
}

TEST(Grants, sec_WhatNoRuleGrantsIsDenied) {
  const Grants none = Of({});
  EXPECT_THAT(none.Check(kNode1, "eu", Action::kRun, "vision"),
              StatusIs(kDenied, ::testing::_));
  EXPECT_THAT(none.Check(kAnyOperator, "", Action::kSee, "vision"),
              StatusIs(kDenied, ::testing::_));
  EXPECT_THAT(none.CheckAll(kAnyOperator, Action::kSee),
              StatusIs(kDenied, ::testing::_));
}

TEST(Grants, sec_ARefusalSaysWhoWhatWhichRuleAndHowToAllowIt) {
  const Grants grants = Of({.run = {"agent/node-1=vision-*"}});
  const absl::Status refused =
      grants.Check(kNode2, "eu", Action::kRun, "vision-2");
  EXPECT_THAT(
      refused,
      StatusIs(kDenied, AllOf(HasSubstr("spiffe://pactrain/agent/node-2"),
                              HasSubstr("run job 'vision-2'"),
                              HasSubstr("no rule of run in p.yaml"),
                              HasSubstr("\"agent/node-2=vision-2\""))));
  // The advice holds.
  EXPECT_OK(Of({.run = {"agent/node-2=vision-2"}})
                .Check(kNode2, "eu", Action::kRun, "vision-2"));
}

TEST(Grants, sec_EachListGrantsItsOwn) {
  const Grants grants = Of({.run = {"agent/node-*=vision"},
                            .see = {"reader/bob=vision", "operator=*"},
                            .change = {"operator/ann=vision"}});
  EXPECT_OK(grants.Check(kNode2, "eu", Action::kRun, "vision"));
  EXPECT_FALSE(grants.Check(kNode2, "eu", Action::kRun, "vision-2").ok());
  EXPECT_OK(grants.Check(kBob, "", Action::kSee, "vision"));
  EXPECT_FALSE(grants.Check(kBob, "", Action::kSee, "text").ok());
  EXPECT_FALSE(grants.Check(kAnyReader, "", Action::kSee, "vision").ok());
  // Who changes a job sees it.
  EXPECT_OK(grants.Check(kAnn, "", Action::kSee, "vision"));
  EXPECT_OK(grants.Check(kAnn, "", Action::kChange, "vision"));
  EXPECT_FALSE(grants.Check(kAnn, "", Action::kChange, "text").ok());
  EXPECT_FALSE(grants.Check(kAnyOperator, "", Action::kChange, "vision").ok());
  EXPECT_OK(grants.CheckAll(kAnyOperator, Action::kSee));
  EXPECT_FALSE(grants.CheckAll(kBob, Action::kSee).ok());
}

TEST(Grants, sec_ASiteCountsForThoseWhoMayBeOfIt) {
  EXPECT_THAT(Grants::Of({.run = {"site/eu=vision"}}, "p.yaml"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'site/eu=vision' counts for nobody"),
                             HasSubstr("agent/node-*=eu"))));
  const Grants grants =
      Of({.run = {"site/eu=vision"}, .sites = {"agent/node-1=eu"}});
  EXPECT_OK(grants.CheckSite(kNode1, "eu"));
  EXPECT_OK(grants.Check(kNode1, "eu", Action::kRun, "vision"));
  EXPECT_THAT(grants.CheckSite(kNode2, "eu"),
              StatusIs(kDenied, HasSubstr("\"agent/node-2=eu\"")));
  EXPECT_FALSE(grants.CheckSite(kNode1, "us").ok());
  EXPECT_OK(Of({}).CheckSite(kNode2, "eu"));
}

TEST(Grants, sec_AKeyOfOneJobIsOfNoUseForAnother) {
  const Identity agent{Role::kAgent, "a..vision", "vision"};
  const Identity admin{Role::kOperator, "", "vision"};
  const Grants none;
  EXPECT_OK(none.Check(agent, "", Action::kRun, "vision"));
  EXPECT_OK(none.Check(admin, "", Action::kChange, "vision"));
  EXPECT_THAT(none.Check(agent, "", Action::kRun, "text"),
              StatusIs(kDenied, AllOf(HasSubstr("of job 'vision' alone"),
                                      HasSubstr("new-key --job text"))));
  EXPECT_FALSE(none.CheckAll(admin, Action::kSee).ok());
  // Whatever a file says.
  const Grants all = Of({.run = {"job/*/agent/*=*"}});
  EXPECT_OK(all.Check(agent, "", Action::kRun, "vision"));
  EXPECT_FALSE(all.Check(agent, "", Action::kRun, "text").ok());
  // A file that names the others' agents grants it nothing.
  EXPECT_FALSE(
      Of({.run = {"agent/*=*"}}).Check(agent, "", Action::kRun, "vision").ok());
}

TEST(Grants, sec_DeniedByNameSerialOrKey) {
  const std::string key(64, 'a'), id(16, '1');
  const Credential node1{kNode1, "5F02", key, id};
  for (const std::string& rule :
       {std::string("agent/node-1"), std::string("agent/*"),
        std::string("serial/5f02"), std::string("serial/005F02"), "key/" + key,
        "key/" + id}) {
    EXPECT_THAT(Of({.deny = {rule}}).CheckDenied(node1),
                StatusIs(kDenied, HasSubstr("rule '" + rule + "' of deny")));
  }
  const Grants others =
      Of({.deny = {"agent/node-2", "serial/5F", "operator*",
                   "key/" + std::string(64, 'b'), "job/vision/*"}});
  EXPECT_OK(others.CheckDenied(node1));
  EXPECT_FALSE(
      others.CheckDenied({{Role::kReader, "", "vision"}, "", "", ""}).ok());
}

TEST(Grants, sec_ARuleThatIsNoneIsNamed) {
  const std::vector<std::pair<Grants::Lists, std::string>> kCases = {
      {{.run = {"agent/a"}}, "p.yaml: run: 'agent/a' is no rule"},
      {{.run = {"a=b"}}, "'a=b' is no rule; allowed is agent/... or site/..."},
      {{.run = {"agent/a="}}, "'agent/a='"},
      {{.run = {"agent/a=b=c"}}, "'agent/a=b=c'"},
      {{.run = {"operator=a"}}, "'operator=a'"},
      {{.run = {"agent/=a"}}, "'agent/=a'"},
      {{.run = {"agent/A=a"}}, "'agent/A=a'"},
      {{.see = {"operators=a"}}, "p.yaml: see: 'operators=a'"},
      {{.change = {"reader=a"}}, "p.yaml: change: 'reader=a'"},
      {{.sites = {"eu"}}, "p.yaml: sites: 'eu'"},
      {{.deny = {"node-1"}}, "p.yaml: deny: 'node-1' means nobody"},
      {{.deny = {"key/12"}}, "'key/12' means nobody"},
      {{.deny = {"serial/x"}}, "'serial/x' means nobody"},
      {{.deny = {"*"}}, "'*' means nobody"}};
  for (const auto& [lists, what] : kCases) {
    EXPECT_THAT(Grants::Of(lists, "p.yaml"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
  EXPECT_THAT(
      Grants::Of(
          {.deny = std::vector<std::string>(Grants::kMaxRules + 1, "agent/a")},
          "p.yaml"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("10000 rules")));
}

}  // namespace
}  // namespace pactrain::coordinator
