#include "base/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "base/mutex.h"

namespace pactrain::base {
namespace {

namespace tls = grpc::experimental;

class PeerVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit PeerVerifier(CheckPeer check) : check_(std::move(check)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::vector<std::string> uris;
    for (const grpc::string_ref& uri : request->uri_names()) {
      uris.emplace_back(uri.data(), uri.size());
    }
    const absl::Status checked = check_(uris);
    if (!checked.ok()) {
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                             std::string(checked.message()));
    }
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const CheckPeer check_;
};

// What certificates say, read once and not at each call.
class FactsCache {
 public:
  static constexpr size_t kMax = 2048;

  std::shared_ptr<const CertificateFacts> Get(const grpc::string_ref& pem) {
    const std::string text(pem.data(), pem.size());
    MutexLock lock(&mu_);
    const auto it = facts_.find(text);
    if (it != facts_.end()) return it->second;
    if (facts_.size() >= kMax) facts_.clear();
    return facts_[text] =
               std::make_shared<const CertificateFacts>(FactsOf(text));
  }

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<const CertificateFacts>> facts_
      ABSL_GUARDED_BY(mu_);
};

// Of the certificate of a call's other side, which each call is asked for
// several times. Never taken down: gRPC's threads outlive main().
std::shared_ptr<const CertificateFacts> FactsOfPeer(
    const grpc::AuthContext& context) {
  static FactsCache& cache = *new FactsCache();
  const auto found =
      context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return cache.Get(found.empty() ? "" : found[0]);
}

// gRPC asks for what a call's metadata show; that there is a call is enough.
class CallCheck : public grpc::AuthMetadataProcessor {
 public:
  explicit CallCheck(CheckCall check) : check_(std::move(check)) {}
  // Else each call would wait for a thread.
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context,
                       OutputMetadata*, OutputMetadata*) override {
    const absl::Status checked = check_(*FactsOfPeer(*context));
    return grpc::Status(static_cast<grpc::StatusCode>(checked.code()),
                        std::string(checked.message()));
  }

 private:
  const CheckCall check_;
};

void Configure(const TlsFiles& files, const CheckPeer& check,
               tls::TlsCredentialsOptions& options) {
  // gRPC 1.51 has no setting for the least version. With no cipher of TLS 1.2
  // but one that needs a shared key, which nobody has, only TLS 1.3 is left.
  setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES128-GCM-SHA256", /*overwrite=*/1);
  options.set_certificate_provider(
      std::make_shared<tls::FileWatcherCertificateProvider>(
          files.key, files.cert, files.ca, kReloadSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<PeerVerifier>(check));
  // Identities are URIs, not host names.
  options.set_check_call_host(false);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    const TlsFiles& files, const CheckPeer& check) {
  if (!files.given()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions options;
  Configure(files, check, options);
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const TlsFiles& files, const CheckPeer& check,
    const CheckCall& check_call) {
  if (!files.given()) return grpc::InsecureServerCredentials();
  // It has a line for each stranger, without an end.
  gpr_set_log_function([](gpr_log_func_args*) {});
  tls::TlsServerCredentialsOptions options(nullptr);
  Configure(files, check, options);
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  auto credentials = tls::TlsServerCredentials(options);
  if (check_call) {
    credentials->SetAuthMetadataProcessor(
        std::make_shared<CallCheck>(check_call));
  }
  return credentials;
}

CertificateFacts PeerFacts(const grpc::AuthContext& context) {
  return *FactsOfPeer(context);
}

}  // namespace pactrain::base
