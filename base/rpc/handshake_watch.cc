#include "base/rpc/handshake_watch.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/tls/tls_files.h"
#include "base/tls/tls_trouble.h"

namespace pactrain::base {

struct HandshakeWatch::Shared {
  explicit Shared(Options given) : options(std::move(given)) {}
  const Options options;
  Mutex mutex;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

// Of one connection; belongs to its SSL.
struct HandshakeTag {
  std::shared_ptr<HandshakeWatch::Shared> watch;
  HandshakeWatch::Connection connection;
  absl::Duration accepted;
  std::optional<CertificateFacts> facts;  // Once it is proven.
};

namespace {

// gRPC's clock and ours may differ by so much at the end of the limit.
constexpr absl::Duration kAlmost = absl::Milliseconds(100);

// Of the connection that this thread hands over just now.
thread_local const HandshakeTag* handing_over = nullptr;

// Of a handshake that was not finished. How far it came says what was missing.
std::string WhyUnfinished(const SSL* ssl, bool late, absl::Duration limit) {
  if (late) {
    return absl::StrCat("no handshake within ", absl::FormatDuration(limit));
  }
  switch (SSL_get_state(ssl)) {
    case TLS_ST_BEFORE:
      return BIO_number_read(SSL_get_rbio(ssl)) == 0
                 ? "it hung up without a word"
                 : "it speaks something else than TLS (plain text?)";
    case TLS_ST_SR_CLNT_HELLO:
      return "its hello is not of TLS 1.3, or malformed";
    case TLS_ST_SR_CERT:
      if (SSL_get0_peer_certificate(ssl) == nullptr) {
        return "it has no certificate";
      }
      return "it hung up before the end";
    default:
      return "it hung up on this side's certificate: its CA or job key is "
             "another one";
  }
}

std::optional<std::string> WhyFailed(const SSL* ssl, const HandshakeTag& tag) {
  const HandshakeWatch::Options& options = tag.watch->options;
  const long result = SSL_get_verify_result(ssl);
  if (result != X509_V_OK) return WhyUnverified(result);
  if (!SSL_is_init_finished(ssl)) {
    const absl::Duration took = MonotonicNow() - tag.accepted;
    return WhyUnfinished(ssl, took >= options.limit - kAlmost, options.limit);
  }
  const absl::Status checked =
      options.check(UrisOf(SSL_get0_peer_certificate(ssl)));
  if (checked.ok()) return std::nullopt;
  return std::string(checked.message());
}

// Of this side's certificate, or of one that it shows above it.
absl::Time OwnEnd(const SSL* ssl) {
  absl::Time end = absl::InfiniteFuture();
  if (const X509* const own = SSL_get_certificate(ssl)) {
    end = TimeOf(X509_get0_notAfter(own));
  }
  STACK_OF(X509)* above = nullptr;
  // A macro that takes no const.
  SSL_get0_chain_certs(const_cast<SSL*>(ssl), &above);
  return std::min(end, FirstEndOf(above));
}

// The client's Finished: what came before was checked, and nobody can say it
// who does not hold the keys that were agreed on there.
void OnFinished(const SSL* ssl, HandshakeTag& accepted) {
  auto& watch = *accepted.watch;
  const X509* const certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return;
  CertificateFacts facts = FactsOf(ssl);
  facts.until = std::min(facts.until, OwnEnd(ssl));
  if (!watch.options.check(facts.uris).ok()) return;
  accepted.facts = facts;
  MutexLock lock(&watch.mutex);
  if (!watch.stopped) {
    watch.options.on_proven(accepted.connection.place, std::move(facts));
  }
}

void OnMessage(int write, int, int type, const void* bytes, size_t size,
               SSL* ssl, void* tag) {
  if (write != 0 || type != SSL3_RT_HANDSHAKE || size == 0) return;
  auto& accepted = *static_cast<HandshakeTag*>(tag);
  const uint8_t kind = *static_cast<const uint8_t*>(bytes);
  if (kind == SSL3_MT_FINISHED) OnFinished(ssl, accepted);
  if (kind != SSL3_MT_KEY_UPDATE || !accepted.facts) return;
  auto& watch = *accepted.watch;
  MutexLock lock(&watch.mutex);
  if (!watch.stopped) watch.options.on_key_update(*accepted.facts);
}

void OnNew(void* parent, void*, CRYPTO_EX_DATA* data, int index, long, void*) {
  if (handing_over == nullptr) return;  // A client's, or nobody watches.
  auto* const tag = new HandshakeTag(*handing_over);
  CRYPTO_set_ex_data(data, index, tag);
  auto* const ssl = static_cast<SSL*>(parent);
  SSL_set_msg_callback(ssl, &OnMessage);
  SSL_set_msg_callback_arg(ssl, tag);
}

// Nobody copies a connection; a copy would be nobody's.
int OnCopy(CRYPTO_EX_DATA*, const CRYPTO_EX_DATA*, void** tag, int, long,
           void*) {
  *tag = nullptr;
  return 1;
}

void OnFree(void* parent, void* data, CRYPTO_EX_DATA*, int, long, void*) {
  const std::unique_ptr<HandshakeTag> tag(static_cast<HandshakeTag*>(data));
  if (tag == nullptr || *tag->connection.ended) return;
  const auto why = WhyFailed(static_cast<const SSL*>(parent), *tag);
  if (!why) return;
  auto& watch = *tag->watch;
  // Under the mutex, so that nobody is told after Stop().
  MutexLock lock(&watch.mutex);
  if (!watch.stopped) watch.options.on_failed(tag->connection.source, *why);
}

// OpenSSL would take itself down at the end of the process, under gRPC's
// threads, which still end connections then. Before anybody else uses it.
[[maybe_unused]] const int kept_to_the_end =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

// In every SSL that is made from now on, once in a process.
void Install() {
  static const int index =
      SSL_get_ex_new_index(0, nullptr, &OnNew, &OnCopy, &OnFree);
  PT_CHECK(index >= 0);
}

}  // namespace

HandshakeWatch::HandshakeWatch(Options options)
    : shared_(std::make_shared<Shared>(std::move(options))) {
  Install();
}

HandshakeWatch::~HandshakeWatch() { Stop(); }

void HandshakeWatch::Accept(const Connection& connection,
                            const std::function<void()>& hand_over) {
  const HandshakeTag tag = {shared_, connection, MonotonicNow(), std::nullopt};
  handing_over = &tag;
  hand_over();
  handing_over = nullptr;
}

void HandshakeWatch::Stop() {
  MutexLock lock(&shared_->mutex);
  shared_->stopped = true;
}

}  // namespace pactrain::base
