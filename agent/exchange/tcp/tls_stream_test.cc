#include "agent/exchange/tcp/tls_stream.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "asio/io_context.hpp"
#include "asio/read.hpp"
#include "asio/ssl/error.hpp"
#include "asio/write.hpp"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using asio::ip::tcp;

constexpr size_t kRecordHeader = 5;
constexpr size_t kTagAndType = 17;

class TlsStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    sockets_[0].connect(acceptor.local_endpoint());
    acceptor.accept(sockets_[1]);
    for (int side : {0, 1}) {
      const std::string name = side == 0 ? "a" : "b";
      ASSERT_OK_AND_ASSIGN(
          const auto context,
          base::MakeTlsContext(
              ca_.Issue(name, "spiffe://pactrain/agent/" + name), {}));
      streams_[side].emplace(sockets_[side], context);
    }
    int done = 0;
    const auto count = [&](const asio::error_code& error) {
      EXPECT_FALSE(error) << error.message();
      ++done;
    };
    streams_[0]->Handshake(TlsStream::Side::kClient, count);
    streams_[1]->Handshake(TlsStream::Side::kServer, count);
    RunUntil([&] { return done == 2; });
  }

  template <typename Condition>
  void RunUntil(Condition condition) {
    while (!condition()) {
      io_.restart();  // It stops when nothing is left to do.
      ASSERT_GT(io_.run_one_for(std::chrono::minutes(2)), 0);
    }
  }

  // Sends `pieces` from one side, and returns once they are on their way.
  void Write(int side, const std::vector<std::string>& pieces) {
    std::vector<asio::const_buffer> buffers;
    size_t bytes = 0, written = 0;
    for (const std::string& piece : pieces) {
      buffers.push_back(asio::buffer(piece));
      bytes += piece.size();
    }
    streams_[side]->Write(buffers,
                          [&](const asio::error_code& error, size_t n) {
                            EXPECT_FALSE(error) << error.message();
                            written = n;
                          });
    RunUntil([&] { return written > 0; });
    EXPECT_EQ(written, bytes);
  }

  std::string Read(int side, size_t bytes) {
    std::string got;
    std::vector<char> buffer(100);
    while (got.size() < bytes) {
      bool done = false;
      streams_[side]->Read(asio::buffer(buffer),
                           [&](const asio::error_code& error, size_t n) {
                             EXPECT_FALSE(error) << error.message();
                             got.append(buffer.data(), n);
                             done = true;
                           });
      RunUntil([&] { return done; });
      if (HasFatalFailure()) break;
    }
    return got;
  }

  // Clear bytes of each of the records that `bytes` came in.
  std::vector<size_t> Records(int side, size_t bytes) {
    std::vector<size_t> records;
    for (size_t left = bytes; left > 0;) {
      uint8_t header[kRecordHeader];
      asio::read(sockets_[side], asio::buffer(header));
      std::vector<uint8_t> body(header[3] << 8 | header[4]);
      asio::read(sockets_[side], asio::buffer(body));
      records.push_back(body.size() - kTagAndType);
      left -= std::min(left, records.back());
    }
    return records;
  }

  const base::TestCa ca_{base::MakeTestFolder()};
  asio::io_context io_;
  tcp::socket sockets_[2] = {tcp::socket(io_), tcp::socket(io_)};
  std::optional<TlsStream> streams_[2];
};

TEST_F(TlsStreamTest, SmallPiecesTravelInFullRecords) {
  Write(0, std::vector<std::string>(1000, std::string(40, 'x')));
  EXPECT_EQ(Records(1, 40'000), (std::vector<size_t>{16384, 16384, 7232}));
}

TEST_F(TlsStreamTest, ALargePieceThatFitsEndsItsRecord) {
  const std::string header(64, 'h'), levels(4900, 'l'), exact(16'384, 'e');
  Write(0, {header, levels, header, header, levels});
  EXPECT_EQ(Records(1, 9992), (std::vector<size_t>{4964, 5028}));
  Write(0, {header, exact, header, exact});
  EXPECT_EQ(Records(1, 32'896), (std::vector<size_t>{16384, 16384, 128}));
}

TEST_F(TlsStreamTest, ReadTakesWhatFitsAndKeepsTheRest) {
  Write(0, {std::string(150, 'x'), std::string(20'000, 'y')});
  EXPECT_EQ(Read(1, 20'150), std::string(150, 'x') + std::string(20'000, 'y'));
}

TEST_F(TlsStreamTest, PeerMayAskForNewKeysAtAnyTime) {
  SSL_key_update(const_cast<SSL*>(streams_[0]->ssl()),
                 SSL_KEY_UPDATE_REQUESTED);
  Write(0, {"new keys"});
  EXPECT_EQ(Read(1, 8), "new keys");
  Write(1, {"newer ones"});
  EXPECT_EQ(Read(0, 10), "newer ones");
}

TEST_F(TlsStreamTest, DamagedRecordIsAnErrorAfterTheGoodBytesBeforeIt) {
  Write(0, {"good"});
  asio::write(sockets_[0], asio::buffer(std::string("\x17\x03\x03\0\x20", 5) +
                                        std::string(32, 'x')));
  EXPECT_EQ(Read(1, 4), "good");
  std::vector<char> buffer(100);
  std::optional<asio::error_code> told;
  streams_[1]->Read(asio::buffer(buffer), [&](const asio::error_code& error,
                                              size_t) { told = error; });
  RunUntil([&] { return told.has_value(); });
  EXPECT_EQ(told->category(), asio::error::get_ssl_category())
      << told->message();
}

TEST_F(TlsStreamTest, ExportedIsTheSameAtBothEndsAndOfOneConnectionAlone) {
  const std::string first = streams_[0]->Exported();
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(streams_[1]->Exported(), first);
  for (tcp::socket& socket : sockets_) socket.close();
  SetUp();
  EXPECT_EQ(streams_[0]->Exported(), streams_[1]->Exported());
  EXPECT_NE(streams_[0]->Exported(), first);
}

TEST_F(TlsStreamTest, CipherIsTheFastestOfAes) {
  EXPECT_STREQ(SSL_get_cipher(streams_[1]->ssl()), "TLS_AES_128_GCM_SHA256");
}

}  // namespace
}  // namespace pactrain::agent
