#include "base/connection_caps.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/status_matchers.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

std::string Source(const char* text) {
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    return SourceOf(reinterpret_cast<const sockaddr*>(&v4));
  }
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  EXPECT_EQ(inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
  return SourceOf(reinterpret_cast<const sockaddr*>(&v6));
}

TEST(SourceOf, IsAnAddressOrTheNetOfAnIpv6One) {
  EXPECT_EQ(Source("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(Source("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(Source("::1"), "::1");
  EXPECT_EQ(Source("2001:db8:1:2:3::1"), Source("2001:db8:1:2:ffff::2"));
  EXPECT_NE(Source("2001:db8:1:2::1"), Source("2001:db8:1:3::1"));
}

// Opens `count` connections and expects the next to be refused so.
void Fill(ConnectionCaps& caps, const std::string& source, int count,
          Refusal expected) {
  Refusal refusal = {};
  for (int i = 0; i < count; ++i) EXPECT_OK(caps.Admit(source, &refusal));
  EXPECT_THAT(caps.Admit(source, &refusal),
              StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
  EXPECT_EQ(refusal, expected) << source;
}

TEST(ConnectionCaps, sec_limits_EachSourceHasItsOwnAndAllTogetherOne) {
  ConnectionCaps caps({.total = 100, .per_source = 32, .from_loopback = 50});
  Fill(caps, "10.0.0.1", 32, Refusal::kSource);
  Fill(caps, "127.0.0.1", 50, Refusal::kSource);
  Fill(caps, "10.0.0.2", 18, Refusal::kTotal);
  EXPECT_EQ(caps.open(), 100);
}

TEST(ConnectionCaps, WhatIsGoneMakesRoom) {
  ConnectionCaps caps({.total = 2, .per_source = 1, .from_loopback = 0});
  Fill(caps, "10.0.0.1", 1, Refusal::kSource);
  Fill(caps, "127.0.0.1", 0, Refusal::kSource);
  caps.Release("10.0.0.1");
  EXPECT_EQ(caps.open(), 0);
  Fill(caps, "10.0.0.1", 1, Refusal::kSource);
}

TEST(ConnectionCaps, ARefusalNamesTheSourceAndTheLimit) {
  ConnectionCaps caps({.total = 2, .per_source = 1, .from_loopback = 1});
  Refusal refusal = {};
  EXPECT_OK(caps.Admit("10.0.0.1", &refusal));
  EXPECT_THAT(caps.Admit("10.0.0.1", &refusal),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("from 10.0.0.1 are open as one address may "
                                 "have, 1")));
}

}  // namespace
}  // namespace pactrain::base
