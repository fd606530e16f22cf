#include "base/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>
#include <utility>

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
    const TlsFiles& files, const CheckPeer& check) {
  if (!files.given()) return grpc::InsecureServerCredentials();
  // It has a line for each stranger, without an end.
  gpr_set_log_function([](gpr_log_func_args*) {});
  tls::TlsServerCredentialsOptions options(nullptr);
  Configure(files, check, options);
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

CertificateFacts PeerFacts(const grpc::AuthContext& context) {
  const auto found =
      context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (found.empty()) return {};
  return FactsOf(absl::string_view(found[0].data(), found[0].size()));
}

}  // namespace pactrain::base
