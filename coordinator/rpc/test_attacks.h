// Raw clients of a real coordinator with certificates, for tests of what they
// may do to it.
//
// The strangers come from 127.0.0.2 and further, the good client from
// 127.0.0.1, so that they are different sources.
#ifndef PACTRAIN_COORDINATOR_RPC_TEST_ATTACKS_H_
#define PACTRAIN_COORDINATOR_RPC_TEST_ATTACKS_H_

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/log_capture.h"
#include "base/tls/test_certs.h"
#include "coordinator/rpc/test_raw_client.h"
#include "coordinator/rpc/test_server.h"

namespace pactrain::coordinator {

using base::Refusal;

// Reads until there is a frame like this, or the connection is over.
inline bool ReadUntil(RawClient& client, http2::Type type, uint8_t flags,
                      std::string* payload = nullptr) {
  std::string all;
  while (!http2::Find(all, type, flags, payload)) {
    const std::string more = client.Receive();
    if (more.empty()) return false;
    all += more;
  }
  return true;
}

class AttackFixture : public ServerFixture {
 protected:
  void SetUp() override { StartWith(Server::kCaps); }
  void StartWith(const base::ConnectionCaps::Limits& caps) {
    Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"), caps);
  }
  RawClient Dial(int host = 2) {
    return RawClient(server_->address().port, host);
  }
  base::TlsFiles Operator() const {
    return ca_.Issue("operator", "spiffe://pactrain/operator");
  }
  // A proper client, from 127.0.0.1.
  void ExpectServes() {
    const auto context = MakeContext();
    context->set_wait_for_ready(true);
    v1::ListJobsResponse response;
    const grpc::Status status = v1::Admin::NewStub(ChannelOf(Operator()))
                                    ->ListJobs(context.get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  static bool Eventually(const std::function<bool()>& done) {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
    while (!done()) {  // Asked once a turn: it may dial.
      if (base::MonotonicNow() > end) return false;
      poll(nullptr, 0, 10);
    }
    return true;
  }
  uint64_t Refused(Refusal refusal) const {
    return server_->refused_connections().of(refusal);
  }
  // These bytes of HTTP/2, in plain text and after a handshake without a
  // certificate: not a byte of HTTP/2 is answered.
  void ExpectRefusedBeforeHttp2(const std::string& bytes) {
    RawClient plain = Dial();
    plain.Send(bytes);
    EXPECT_FALSE(http2::Find(plain.ReceiveAll(), http2::kSettings, 0));
    RawClient nobody = Dial();
    if (nobody.ShakeHands()) {
      nobody.Send(bytes);
      EXPECT_EQ(nobody.ReceiveAll(), "");
    }
    EXPECT_TRUE(Eventually([&] { return Refused(Refusal::kHandshake) >= 2; }));
    ExpectServes();
  }
  // The same from an operator: the connection may end, the coordinator lives.
  void ExpectSurvives(const std::string& bytes) {
    RawClient client = Dial();
    ASSERT_TRUE(client.ShakeHands(Operator()));
    client.Send(bytes);
    client.Send(http2::Frame(http2::kPing, 0, 0, "12345678"));
    // By then it has read all, if it reads on at all.
    ReadUntil(client, http2::kPing, http2::kAck);
    ExpectServes();
  }

  // After the preface: limits hold from an acknowledgement on, which the
  // preface's may have come too early to be.
  static void Agree(RawClient& client) {
    const std::string ping = http2::Frame(http2::kPing, 0, 0, "12345678");
    client.Send(ping);
    EXPECT_TRUE(ReadUntil(client, http2::kPing, http2::kAck));
    client.Send(http2::Frame(http2::kSettings, http2::kAck, 0, "") + ping);
    EXPECT_TRUE(ReadUntil(client, http2::kPing, http2::kAck));
  }

  base::LogCapture log_;
  const base::TestCa ca_{folder_};
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_TEST_ATTACKS_H_
