#include "base/net.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostPort, ReadsIpv4Ipv6AndNames) {
  ASSERT_OK_AND_ASSIGN(HostPort v4, ParseHostPort("10.0.0.1:7070"));
  EXPECT_EQ(v4.host, "10.0.0.1");
  EXPECT_EQ(v4.port, 7070);
  EXPECT_EQ(v4.ToString(), "10.0.0.1:7070");
  ASSERT_OK_AND_ASSIGN(HostPort v6, ParseHostPort("[::1]:0"));
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.ToString(), "[::1]:0");
  ASSERT_OK_AND_ASSIGN(HostPort name, ParseHostPort("node-7.example:65535"));
  EXPECT_EQ(name.host, "node-7.example");
}

TEST(ParseHostPort, RefusesMalformedTextNamingIt) {
  for (const char* text :
       {"", "x", ":1", "host:", "host:-1", "host:+1", "host:65536",
        "host:99999999999", "host:1x", "::1:80", "[::1:80", "[x]:80", "a b:80",
        "http://h:80"}) {
    EXPECT_THAT(ParseHostPort(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
  EXPECT_THAT(
      ParseHostPort(std::string(300, 'x') + ":1"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long")));
}

TEST(ParsePortRange, ReadsOnePortOrARange) {
  struct Case {
    const char* text;
    const char* host;
    uint16_t first, last;
  };
  for (const Case& c : {Case{"10.0.0.1:0", "10.0.0.1", 0, 0},
                        Case{"node-7:80", "node-7", 80, 80},
                        Case{"node-7:80-80", "node-7", 80, 80},
                        Case{"[fe80::1]:7072-7079", "fe80::1", 7072, 7079},
                        Case{"h:1-65535", "h", 1, 65535}}) {
    ASSERT_OK_AND_ASSIGN(PortRange range, ParsePortRange(c.text));
    EXPECT_EQ(range.host, c.host);
    EXPECT_EQ(range.first, c.first) << c.text;
    EXPECT_EQ(range.last, c.last) << c.text;
  }
}

TEST(ParsePortRange, RefusesMalformedText) {
  for (const char* text : {"h:0-5", "h:6-5", "h:1-65536", "h:1-", "h:-5",
                           "h:1-2-3", "h:1:2-3", "h-1", ""}) {
    EXPECT_THAT(ParsePortRange(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")))
        << text;
  }
  EXPECT_THAT(ParsePortRange("h:6-5"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'h:6-5' has a range of ports from 6 to 5")));
}

TEST(CheckListenRange, HasTheRulesOfAnAddress) {
  EXPECT_OK(CheckListenRange("--listen", "127.0.0.1:7072-7079",
                             Protection::kTlsNotYet, false));
  EXPECT_THAT(CheckListenRange("--listen", "10.0.0.1:7072-7079",
                               Protection::kTlsNotYet, false),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("--listen: address '10.0.0.1:7072'")));
  EXPECT_THAT(CheckListenRange("--listen", "127.0.0.1:9-8",
                               Protection::kTlsNotYet, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--listen: address '127.0.0.1:9-8'")));
}

TEST(CheckListenAddress, LoopbackIsFine) {
  for (const char* text :
       {"127.0.0.1:0", "127.9.9.9:1", "[::1]:80", "localhost:0"}) {
    EXPECT_OK(
        CheckListenAddress("--listen", text, Protection::kTlsNotYet, false))
        << text;
  }
}

TEST(CheckListenAddress, OtherAddressesAreRefusedWithTheReason) {
  for (const char* text :
       {"0.0.0.0:80", "10.0.0.1:80", "[::]:80", "128.0.0.1:80"}) {
    EXPECT_THAT(
        CheckListenAddress("--listen", text, Protection::kTlsNotYet, false),
        StatusIs(absl::StatusCode::kPermissionDenied,
                 HasSubstr("not loopback")))
        << text;
  }
}

TEST(CheckListenAddress, WithTlsAnyAddressIsFine) {
  for (const char* text : {"0.0.0.0:80", "10.0.0.1:80", "[::]:80"}) {
    EXPECT_OK(CheckListenAddress("--listen", text, Protection::kTls, false))
        << text;
  }
}

TEST(CheckListenAddress, TheRefusalSaysWhatWouldHelp) {
  const auto refusal = [](Protection protection) {
    return CheckListenAddress("--listen", "10.0.0.1:80", protection, false)
        .status()
        .ToString();
  };
  EXPECT_THAT(refusal(Protection::kTlsNotYet),
              HasSubstr("give --tls-cert, --tls-key and --tls-ca, or "
                        "--job-key-file,"));
  EXPECT_THAT(refusal(Protection::kTlsNotYet),
              ::testing::Not(HasSubstr("token")));
  EXPECT_THAT(refusal(Protection::kMetricsTokenNotYet),
              HasSubstr("give --metrics-token-file, and --tls-cert,"));
  EXPECT_THAT(refusal(Protection::kPageTokenNotYet),
              HasSubstr("give --page-token-file, and --tls-cert,"));
}

TEST(CheckListenAddress, InsecureNetworkNeedsANamespaceOfItsOwn) {
  const auto checked =
      CheckListenAddress("--listen", "10.0.0.1:80", Protection::kTlsNotYet,
                         /*insecure_network=*/true);
  if (InOwnNetworkNamespace()) {
    EXPECT_OK(checked);
  } else {
    EXPECT_THAT(checked, StatusIs(absl::StatusCode::kPermissionDenied,
                                  HasSubstr("network namespace")));
  }
}

TEST(CheckListenAddress, AHostNameIsNoPlaceToListen) {
  EXPECT_THAT(
      CheckListenAddress("--listen", "example.org:80", Protection::kTls, false),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("IP address")));
}

TEST(CheckListenAddress, ErrorsNameTheFlag) {
  for (const char* text : {"x", "10.0.0.1:80", "example.org:80"}) {
    EXPECT_THAT(
        CheckListenAddress("--listen", text, Protection::kTlsNotYet, false)
            .status()
            .ToString(),
        HasSubstr("--listen: address '"))
        << text;
  }
}

TEST(CheckDialAddress, NeedsAPlaceThatCanBeDialled) {
  EXPECT_OK(CheckDialAddress("--coordinator", "127.0.0.1:7070",
                             Protection::kTlsNotYet, false));
  EXPECT_THAT(CheckDialAddress("--coordinator", "127.0.0.1:0",
                               Protection::kTlsNotYet, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nobody can dial '127.0.0.1:0'")));
  EXPECT_THAT(CheckDialAddress("--coordinator", "10.1.2.3:7070",
                               Protection::kTlsNotYet, false),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("--coordinator: address '10.1.2.3:7070'")));
}

TEST(CheckDialAddress, WithTlsAHostMayBeNamed) {
  EXPECT_OK(CheckDialAddress("--coordinator", "head.example:7070",
                             Protection::kTls, false));
  EXPECT_THAT(
      CheckDialAddress("--coordinator", "head.example:7070",
                       Protection::kTlsNotYet, false),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("names a host, which needs TLS, so that the other "
                         "side proves who it is; give --tls-cert, --tls-key "
                         "and --tls-ca, or --job-key-file")));
  // Where that is to be without TLS a name leads anywhere.
  EXPECT_THAT(CheckDialAddress("--coordinator", "head.example:7070",
                               Protection::kTlsNotYet, true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("give its IP address")));
  EXPECT_THAT(CheckDialAddress("--coordinator", "0.0.0.0:7070",
                               Protection::kTls, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nobody can dial")));
}

}  // namespace
}  // namespace pactrain::base
