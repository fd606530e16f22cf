#include "coordinator/page/page_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/ip/tcp.hpp"
#include "asio/read_until.hpp"
#include "asio/ssl.hpp"
#include "asio/write.hpp"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "coordinator/page/test_snapshots.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef";

// A connection to the server that has asked for something.
class Client {
 public:
  Client(const base::HostPort& address, const std::string& request,
         int receive_bytes = 0, uint32_t from = INADDR_LOOPBACK)
      : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes,
                 sizeof(receive_bytes));
    }
    const timeval patience = {30, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(from);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    to.sin_port = htons(address.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              0);
    EXPECT_EQ(send(socket_, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
  }
  Client(const Client&) = delete;
  ~Client() { close(socket_); }

  // All up to `word` and with it, or to the end.
  std::string ReadTo(const std::string& word) {
    char piece[4096];
    size_t found = word.empty() ? read_.npos : read_.find(word);
    while (found == read_.npos) {
      const ssize_t got = recv(socket_, piece, sizeof(piece), 0);
      if (got <= 0) return std::exchange(read_, "");
      read_.append(piece, static_cast<size_t>(got));
      if (!word.empty()) found = read_.find(word);
    }
    std::string all = read_.substr(0, found + word.size());
    read_.erase(0, found + word.size());
    return all;
  }

 private:
  const int socket_;
  std::string read_;  // And not asked for yet.
};

class PageServerTest : public ::testing::Test {
 protected:
  ~PageServerTest() override { board_.Stop(); }

  void Start(PageServer::Options options) {
    options.listen = {"127.0.0.1", 0};
    auto server = PageServer::Start(
        options, &board_,
        [this](const std::string& source, const std::string& why) {
          const std::lock_guard lock(mu_);
          refused_.push_back(source + " " + why);
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    board_.Observe();
  }
  static std::string Request(const std::string& path,
                             const std::string& more = "",
                             const std::string& method = "GET") {
    return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n",
                        more, "\r\n");
  }
  std::string Ask(const std::string& request) {
    return Client(server_->address(), request).ReadTo("");
  }

  std::string TokenFile() const {
    const std::string file = folder_ + "/token";
    std::ofstream(file) << kToken << "\n";
    chmod(file.c_str(), 0600);
    return file;
  }

  const std::string folder_ = base::MakeTestFolder();
  StateSnapshot snapshot_ = RunningSnapshot();
  PageBoard board_{{[this] { return snapshot_; }, [] { return std::nullopt; }},
                   {}};
  std::mutex mu_;
  std::vector<std::string> refused_;
  std::unique_ptr<PageServer> server_;
};

TEST_F(PageServerTest, ServesItsFilesUnderAStrictPolicy) {
  Start({});
  for (const char* path : {"/", "/page.js", "/page.css", "/rules.json"}) {
    const std::string answer = Ask(Request(path));
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK")) << path;
    EXPECT_THAT(answer, HasSubstr("default-src 'none'; script-src 'self'"));
    EXPECT_THAT(answer, Not(HasSubstr("unsafe")));
  }
  const std::string html = Ask(Request("/"));
  EXPECT_THAT(html, Not(HasSubstr("<style")));
  EXPECT_THAT(html, Not(HasSubstr("style=")));
  EXPECT_THAT(html, Not(HasSubstr("onclick")));
}

TEST_F(PageServerTest, IsReadOnly) {
  Start({});
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    EXPECT_THAT(Ask(Request("/", "Content-Length: 0\r\n", method)),
                HasSubstr("HTTP/1.1 405"))
        << method;
  }
  EXPECT_THAT(Ask(Request("/../etc/passwd")), Not(HasSubstr("root:")));
  EXPECT_THAT(Ask(Request("/nothing")), HasSubstr("HTTP/1.1 404"));
}

TEST_F(PageServerTest, OtherNamesOfThisMachineAreRefusedWithoutAToken) {
  Start({});
  const auto host = [&](const std::string& name) {
    return Ask("GET / HTTP/1.1\r\nHost: " + name + "\r\n\r\n");
  };
  EXPECT_THAT(host("evil.example:7072"), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(host("127.0.0.1:7072"), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(host("[::1]:7072"), HasSubstr("HTTP/1.1 200"));
}

TEST_F(PageServerTest, AWrongTokenIsRefusedAndToldOf) {
  Start({{}, TokenFile()});
  EXPECT_THAT(Ask(Request("/")), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(refused_, ElementsAre());  // A browser's first try.
  const std::string wrong =
      Request("/events?view=overview", "Authorization: Bearer wrong\r\n");
  EXPECT_THAT(Ask(wrong), HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(refused_,
              ElementsAre("127.0.0.1 it showed a wrong token to the page: its "
                          "bearer token is another one"));
}

TEST_F(PageServerTest, TheTokenOpensThePageInBothWays) {
  Start({{}, TokenFile()});
  EXPECT_THAT(
      Ask(Request("/", absl::StrCat("Authorization: Bearer ", kToken, "\r\n"))),
      HasSubstr("HTTP/1.1 200"));
  const std::string pair = absl::Base64Escape(absl::StrCat("anybody:", kToken));
  EXPECT_THAT(
      Ask(Request("/", absl::StrCat("Authorization: Basic ", pair, "\r\n"))),
      HasSubstr("HTTP/1.1 200"));
}

TEST_F(PageServerTest, AViewerGetsWhatIsThereAndThenWhatComes) {
  Start({});
  Client viewer(server_->address(), Request("/events?view=job&job=train"));
  EXPECT_THAT(viewer.ReadTo("\"full\":true"), HasSubstr("\"id\":\"train\""));
  viewer.ReadTo("\n\n");
  snapshot_.groups[0].committed_step = 4711;
  board_.Observe();
  EXPECT_THAT(viewer.ReadTo("\n\n"), HasSubstr("\"step\":4711"));
}

TEST_F(PageServerTest, WhatCannotBeSeenIsRefusedInWords) {
  Start({});
  EXPECT_THAT(Ask(Request("/events?view=secrets")),
              HasSubstr("view must be overview, links or job"));
  EXPECT_THAT(Ask(Request("/events?view=job&job=" + std::string(9000, 'x'))),
              HasSubstr("HTTP/1.1 400"));
}

// That this process has open.
ptrdiff_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

constexpr uint32_t kEvil = INADDR_LOOPBACK + 1;  // Another source.

TEST_F(PageServerTest, sec_page_viewers_TheOldestOfTheSourceGivesWay) {
  Start({.listen = {}, .access = {}, .max_viewers = 2});
  const std::string request = Request("/events?view=overview");
  Client first(server_->address(), request);
  first.ReadTo("data: ");
  Client second(server_->address(), request);
  second.ReadTo("data: ");
  Client third(server_->address(), request);
  EXPECT_THAT(third.ReadTo("data: "), HasSubstr("HTTP/1.1 200"));
  first.ReadTo("");  // Comes to an end.
  second.ReadTo("\n\n");
  third.ReadTo("\n\n");
  board_.Observe();
  EXPECT_THAT(second.ReadTo("data: "), HasSubstr("id: "));
  EXPECT_THAT(third.ReadTo("data: "), HasSubstr("id: "));
  const std::lock_guard lock(mu_);
  EXPECT_THAT(refused_, ElementsAre(HasSubstr(
                            "127.0.0.1 a viewer of it gave way to another: 2 "
                            "look at the page")));
}

// Who comes back at once, from one address, with far more than there are
// places: nobody else is kept out, or loses his place.
TEST_F(PageServerTest, sec_page_viewers_AFloodPushesOutNobodyButItself) {
  constexpr int kPlaces = 20;
  Start({.listen = {}, .access = {}, .max_viewers = kPlaces});
  const std::string request = Request("/events?view=overview");
  Client good(server_->address(), request);
  good.ReadTo("data: ");
  good.ReadTo("\n\n");
  std::deque<Client> flood;
  for (int i = 0; i < 10 * kPlaces; ++i) {
    flood.emplace_back(server_->address(), request, /*receive_bytes=*/2048,
                       kEvil);
  }
  Client other(server_->address(), request);
  EXPECT_THAT(other.ReadTo("data: "), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Request("/")), HasSubstr("HTTP/1.1 200"));
  board_.Observe();
  EXPECT_THAT(good.ReadTo("data: "), HasSubstr("id: "));
}

TEST_F(PageServerTest, WhoReadsNothingIsDropped) {
  snapshot_ = LargeSnapshot(100, 100, 0);
  Start({.listen = {}, .access = {}, .max_viewers = 1});
  const ptrdiff_t before = Descriptors();
  const Client deaf(server_->address(), Request("/events?view=overview"),
                    /*receive_bytes=*/2048);
  const absl::Time end = absl::Now() + absl::Minutes(2);
  bool came = false;
  // One is its own.
  while ((!came || Descriptors() > before + 1) && absl::Now() < end) {
    came |= Descriptors() == before + 4;  // With the server's three.
    // Each message is larger than what its socket takes.
    snapshot_ = LargeSnapshot(
        100, 100, static_cast<int>(absl::ToUnixSeconds(absl::Now())));
    board_.Observe();
    poll(nullptr, 0, 100);
  }
  EXPECT_TRUE(came);
  EXPECT_EQ(Descriptors(), before + 1);
}

TEST_F(PageServerTest, ABoardThatStopsEndsItsViewers) {
  Start({});
  Client viewer(server_->address(), Request("/events?view=links"));
  viewer.ReadTo("data: ");
  board_.Stop();
  viewer.ReadTo("");  // Comes to an end.
}

TEST_F(PageServerTest, APortThatIsTakenIsSaidInWords) {
  Start({});
  EXPECT_THAT(
      PageServer::Start({server_->address()}, &board_, [](auto&&...) {}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--listen-page")));
}

class PageServerTlsTest : public PageServerTest {
 protected:
  using Stream = asio::ssl::stream<asio::ip::tcp::socket>;
  void SetUp() override {
    const base::TestCa ca(folder_);
    tls_ = ca.Issue("coordinator", "spiffe://pactrain/coordinator");
    Start({{}, TokenFile(), tls_});
  }
  // Has asked, and trusts the CA alone.
  std::unique_ptr<Stream> Open(const std::string& request) {
    asio::ssl::context context(asio::ssl::context::tls_client);
    context.load_verify_file(tls_.ca);
    context.set_verify_mode(asio::ssl::verify_peer);
    auto stream = std::make_unique<Stream>(io_, context);
    stream->lowest_layer().connect(
        {asio::ip::make_address("127.0.0.1"), server_->address().port});
    stream->handshake(asio::ssl::stream_base::client);
    asio::write(*stream, asio::buffer(request));
    return stream;
  }
  // All up to `word`, or to the end.
  static std::string ReadTo(Stream& stream, const std::string& word) {
    std::string read;
    asio::error_code end;
    asio::read_until(stream, asio::dynamic_buffer(read), word, end);
    return read;
  }
  static std::string Password(const std::string& token) {
    return absl::StrCat("Authorization: Basic ",
                        absl::Base64Escape("any:" + token), "\r\n");
  }

  base::TlsFiles tls_;
  asio::io_context io_;
};

TEST_F(PageServerTlsTest, sec_page_tls_WhoShowsTheTokenReadsTheStream) {
  const auto stream =
      Open(Request("/events?view=job&job=train", Password(kToken)));
  EXPECT_THAT(ReadTo(*stream, "\"full\":true"), HasSubstr("\"id\":\"train\""));
  snapshot_.groups[0].committed_step = 4711;
  board_.Observe();
  EXPECT_THAT(ReadTo(*stream, "4711"), HasSubstr("\"step\":4711"));
}

TEST_F(PageServerTlsTest, sec_page_tls_WhoDoesNotGets401AndIsToldOf) {
  EXPECT_THAT(ReadTo(*Open(Request("/")), "\r\n\r\n"),
              HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(ReadTo(*Open(Request("/", Password("another"))), "\r\n\r\n"),
              HasSubstr("WWW-Authenticate: Basic"));
  EXPECT_THAT(refused_,
              ElementsAre("127.0.0.1 it showed a wrong token to the page: its "
                          "password is another one"));
}

TEST_F(PageServerTlsTest, sec_page_tls_NothingIsSaidInPlainText) {
  EXPECT_THAT(Ask(Request("/", Password(kToken))), Not(HasSubstr("HTTP")));
}

}  // namespace
}  // namespace pactrain::coordinator
