// What grpcurl, grpc_health_probe and Kubernetes ask any gRPC server.
//
// Debian ships no headers for these two services, so calls are made by name and
// their messages, of one field each, are written as bytes.
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/test_server.h"
#include "gmock/gmock.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kReflect[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kServing[] = "\x08\x01";  // Field 1, status: SERVING.

// A message with one string field of fewer than 128 bytes.
std::string Message(int field, const std::string& text) {
  return absl::StrCat(std::string(1, static_cast<char>(field << 3 | 2)),
                      std::string(1, static_cast<char>(text.size())), text);
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

class ReflectionTest : public ServerFixture {
 protected:
  void SetUp() override {
    Start();
    stub_.emplace(ChannelOf());
  }

  // Until the call's one outstanding operation is done.
  bool Done() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  // One question on a stream; its answer. Once per test.
  std::string Ask(const std::string& question) {
    auto call = stub_->PrepareCall(context_.get(), kReflect, &queue_);
    call->StartCall(nullptr);
    EXPECT_TRUE(Done());
    call->Write(ToBuffer(question), nullptr);
    EXPECT_TRUE(Done());
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    EXPECT_TRUE(Done());
    call->WritesDone(nullptr);
    EXPECT_TRUE(Done());
    grpc::Status status;
    call->Finish(&status, nullptr);
    EXPECT_TRUE(Done());
    EXPECT_TRUE(status.ok()) << status.error_message();
    return ToString(answer);
  }

  // Once per test.
  grpc::Status Check(const std::string& service, std::string* answer) {
    auto call = stub_->PrepareUnaryCall(context_.get(), kCheck,
                                        ToBuffer(service), &queue_);
    call->StartCall();
    grpc::ByteBuffer buffer;
    grpc::Status status;
    call->Finish(&buffer, &status, nullptr);
    EXPECT_TRUE(Done());
    if (status.ok()) *answer = ToString(buffer);
    return status;
  }

  std::optional<grpc::GenericStub> stub_;
  const std::unique_ptr<grpc::ClientContext> context_ = MakeContext();
  grpc::CompletionQueue queue_;
};

TEST_F(ReflectionTest, AllServicesAreListed) {
  const std::string listed = Ask(Message(/*list_services=*/7, "*"));
  EXPECT_THAT(listed, HasSubstr("pactrain.v1.Coordinator"));
  EXPECT_THAT(listed, HasSubstr("pactrain.v1.Admin"));
  EXPECT_THAT(listed, HasSubstr("grpc.reflection.v1alpha.ServerReflection"));
}

TEST_F(ReflectionTest, AServiceIsDescribedByItsName) {
  const std::string described =
      Ask(Message(/*file_containing_symbol=*/4, "pactrain.v1.Admin"));
  EXPECT_THAT(described, HasSubstr("pactrain/v1/admin.proto"));
  EXPECT_THAT(described, HasSubstr("WatchJob"));
}

TEST_F(ReflectionTest, TheServerIsServing) {
  std::string answer;
  const grpc::Status status = Check("", &answer);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer, kServing);
}

TEST_F(ReflectionTest, HealthOfAnUnknownServiceIsNotFound) {
  std::string answer;
  EXPECT_EQ(Check(Message(/*service=*/1, "nobody.Home"), &answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace pactrain::coordinator
