#include "base/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"

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

// gRPC's log has one hook for the whole process, and threads that may call it
// to the very end: never destroyed.
struct HandshakeLog {
  Mutex mutex;
  std::optional<RepeatFilter> told ABSL_GUARDED_BY(mutex);
  std::function<void(const std::string&)> listener ABSL_GUARDED_BY(mutex);
};

HandshakeLog& TheHandshakeLog() {
  static auto* const log = new HandshakeLog();
  return *log;
}

// gRPC tells nobody but its log why a handshake failed, with much around it:
// "Security handshake failed: UNKNOWN:... SSL routines::no shared cipher
// {file:".
void LogFailedHandshakes(gpr_log_func_args* args) {
  absl::string_view message(args->message);
  if (!absl::ConsumePrefix(&message, "Security handshake failed: ")) return;
  message = message.substr(0, message.find(" {"));
  for (const absl::string_view before :
       {" routines::", "error: UNAUTHENTICATED: "}) {
    const size_t at = message.find(before);
    if (at != message.npos) message.remove_prefix(at + before.size());
  }
  HandshakeLog& log = TheHandshakeLog();
  const std::string why(message);
  MutexLock lock(&log.mutex);
  if (log.told->IsNews(why, MonotonicNow())) {
    LOG_WARN("refused a connection in its TLS handshake: {}", why);
  }
  // Under the mutex, so that nobody is told who has taken the listener back.
  if (log.listener) log.listener(why);
}

// What an earlier server of this process told counts no more.
void StartHandshakeLog() {
  {
    MutexLock lock(&TheHandshakeLog().mutex);
    TheHandshakeLog().told.emplace();
  }
  gpr_set_log_function(LogFailedHandshakes);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
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
  StartHandshakeLog();
  tls::TlsServerCredentialsOptions options(nullptr);
  Configure(files, check, options);
  options.set_cert_request_type(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

void SetHandshakeListener(
    std::function<void(const std::string& why)> listener) {
  MutexLock lock(&TheHandshakeLog().mutex);
  TheHandshakeLog().listener = std::move(listener);
}

std::string PeerSerial(const grpc::AuthContext& context) {
  const auto found =
      context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty()
             ? ""
             : SerialOf(absl::string_view(found[0].data(), found[0].size()));
}

std::vector<std::string> PeerUris(const grpc::AuthContext& context) {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri :
       context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return uris;
}

}  // namespace pactrain::base
