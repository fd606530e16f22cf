#include "coordinator/rpc/test_server.h"

#include <chrono>
#include <utility>

#include "base/rpc/channel.h"
#include "base/rpc/credentials.h"
#include "base/status_matchers.h"

namespace pactrain::coordinator {

void ServerFixture::Start(const base::TlsFiles& tls,
                          const base::ConnectionCaps::Limits& caps) {
  auto journal = SqliteJournal::Open(state_dir(), "test");
  ASSERT_OK(journal);
  journal_ = *std::move(journal);
  auto driver = Driver::Create(options_, journal_.get());
  ASSERT_OK(driver);
  driver_ = *std::move(driver);
  auto server =
      Server::Start({"127.0.0.1", 0}, tls, driver_.get(), caps,
                    {[this] { return grants(); }, revoked_}, budgets_);
  ASSERT_OK(server);
  server_ = *std::move(server);
}

void ServerFixture::SetGrants(const Grants::Lists& lists) {
  const auto grants = Grants::Of(lists, "policy.yaml");
  ASSERT_OK(grants);
  base::MutexLock lock(&mu_);
  grants_ = std::make_shared<const Grants>(*grants);
}

std::shared_ptr<const Grants> ServerFixture::grants() {
  base::MutexLock lock(&mu_);
  return grants_;
}

void ServerFixture::Stop() {
  server_.reset();
  driver_.reset();
  journal_.reset();
}

std::shared_ptr<grpc::Channel> ServerFixture::ChannelOf(
    const base::TlsFiles& files) const {
  return base::MakeChannel(
      server_->address().ToString(),
      base::MakeChannelCredentials(
          files, [](const auto&) { return absl::OkStatus(); }),
      /*max_message_bytes=*/-1);
}

std::unique_ptr<grpc::ClientContext> ServerFixture::MakeContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::minutes(2));
  return context;
}

}  // namespace pactrain::coordinator
