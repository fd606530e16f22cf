#include "base/tls/tls_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/safe_folders.h"
#include "base/status_macros.h"
#include "base/tls/certificate_facts.h"

namespace pactrain::base {
namespace {

absl::Status Refuse(const std::string& name, const std::string& file,
                    absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", file, " ", what));
}

// OpenSSL's reason for the failure just now: "no start line".
std::string LastReason() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

absl::Status CheckReadable(const std::string& name, const std::string& file,
                           struct stat* found) {
  if (stat(file.c_str(), found) != 0) {
    return Refuse(name, file,
                  absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(found->st_mode)) return Refuse(name, file, "is not a file");
  return absl::OkStatus();
}

// Whoever could write a CA could let himself in, and whoever a key be somebody.
absl::Status CheckGuarded(const std::string& name, const std::string& file,
                          const struct stat& found) {
  const std::string why = WhyNotGuarded(file, found);
  if (why.empty()) return absl::OkStatus();
  return Refuse(name, file, absl::StrCat("is not safe: ", why));
}

// A file as it is now, whatever takes its name meanwhile. Not valid: for
// whoever opens it by its path to say why.
Fd Held(const std::string& file) {
  // A pipe's writer is not waited for.
  return Fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

absl::Status LoadCertificate(SSL_CTX* context, const TlsFiles& files,
                             const TlsNames& names, const std::string& read) {
  struct stat found;
  RETURN_IF_ERROR(CheckReadable(names.cert, files.cert, &found));
  if (SSL_CTX_use_certificate_chain_file(context, read.c_str()) == 1) {
    return absl::OkStatus();
  }
  return Refuse(names.cert, files.cert,
                absl::StrCat("holds no PEM certificate (", LastReason(), ")"));
}

absl::Status LoadKey(SSL_CTX* context, const TlsFiles& files,
                     const TlsNames& names, const std::string& read) {
  RETURN_IF_ERROR(CheckSecretFile(names.key, files.key));
  if (SSL_CTX_use_PrivateKey_file(context, read.c_str(), SSL_FILETYPE_PEM) !=
      1) {
    const unsigned long error = ERR_peek_last_error();
    if (ERR_GET_REASON(error) != X509_R_KEY_VALUES_MISMATCH) {
      return Refuse(names.key, files.key,
                    absl::StrCat("holds no PEM key without password (",
                                 LastReason(), ")"));
    }
  }
  if (SSL_CTX_check_private_key(context) == 1) return absl::OkStatus();
  ERR_clear_error();
  return Refuse(names.key, files.key,
                absl::StrCat("is not the key of ", files.cert));
}

absl::Status LoadCa(SSL_CTX* context, const TlsFiles& files,
                    const TlsNames& names) {
  struct stat found;
  RETURN_IF_ERROR(CheckReadable(names.ca, files.ca, &found));
  if (files.keeper == nullptr) {
    RETURN_IF_ERROR(CheckGuarded(names.ca, files.ca, found));
  }
  if (SSL_CTX_load_verify_file(context, files.ca.c_str()) == 1) {
    return absl::OkStatus();
  }
  return Refuse(names.ca, files.ca,
                absl::StrCat("holds no PEM certificate (", LastReason(), ")"));
}

CertificateLife LifeOf(const X509* certificate) {
  return {TimeOf(X509_get0_notBefore(certificate)),
          TimeOf(X509_get0_notAfter(certificate))};
}

// That others with this CA would take our certificate, now.
absl::Status CheckOwnCertificate(SSL_CTX* context, const TlsFiles& files,
                                 const TlsNames& names) {
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context, &between);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context),
                      SSL_CTX_get0_certificate(context), between);
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return Refuse(
      names.cert, files.cert,
      absl::StrCat("would be refused by others with the CA ", files.ca, ": ",
                   X509_verify_cert_error_string(
                       X509_STORE_CTX_get_error(check.get()))));
}

}  // namespace

absl::Status CheckSecretFile(const std::string& name, const std::string& file) {
  struct stat found;
  RETURN_IF_ERROR(CheckReadable(name, file, &found));
  if ((found.st_mode & (S_IRWXO | S_IWGRP)) == 0) {
    return CheckGuarded(name, file, found);
  }
  return Refuse(name, file,
                absl::StrCat("may be used by others than its owner and "
                             "group; chmod 600 ",
                             file));
}

absl::StatusOr<TlsContext> MakeTlsContext(const TlsFiles& files,
                                          const TlsNames& names) {
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError(absl::StrCat("OpenSSL: ", LastReason()));
  }
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  // AES of 128 bits first: it is as safe here and costs a seventh less.
  SSL_CTX_set_ciphersuites(context.get(),
                           "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                           "TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_verify(context.get(),
                     SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                     /*callback=*/nullptr);
  // Where one file has both, it is replaced as a whole (JobCertificates), at
  // any time: also between these two.
  Fd both;
  if (files.cert == files.key) both = Held(files.cert);
  const std::string held =
      both.valid() ? absl::StrCat("/proc/self/fd/", both.get()) : "";
  RETURN_IF_ERROR(LoadCertificate(context.get(), files, names,
                                  held.empty() ? files.cert : held));
  RETURN_IF_ERROR(
      LoadKey(context.get(), files, names, held.empty() ? files.key : held));
  RETURN_IF_ERROR(LoadCa(context.get(), files, names));
  RETURN_IF_ERROR(CheckOwnCertificate(context.get(), files, names));
  return context;
}

absl::StatusOr<std::vector<std::string>> CheckTlsFiles(const TlsFiles& files,
                                                       const TlsNames& names) {
  if (files.cert.empty() && files.key.empty() && files.ca.empty()) {
    return std::vector<std::string>();
  }
  for (const auto& [file, name] :
       {std::pair(&files.cert, &names.cert), std::pair(&files.key, &names.key),
        std::pair(&files.ca, &names.ca)}) {
    if (file->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(*name,
                       ": not given; TLS needs all of tls-cert, tls-key and "
                       "tls-ca, or none of them"));
    }
  }
  ASSIGN_OR_RETURN(const TlsContext context, MakeTlsContext(files, names));
  return UrisOf(SSL_CTX_get0_certificate(context.get()));
}

CertificateLives LivesOf(const TlsContext& context) {
  X509* const own = SSL_CTX_get0_certificate(context.get());
  STACK_OF(X509)* between = nullptr;
  SSL_CTX_get0_chain_certs(context.get(), &between);
  // From the own one to the CA's, whatever their times are.
  STACK_OF(X509)* const chain =
      X509_build_chain(own, between, SSL_CTX_get_cert_store(context.get()),
                       /*with_self_signed=*/1, nullptr, nullptr);
  CertificateLives lives = {LifeOf(own), LifeOf(own)};
  for (int i = 1; i < sk_X509_num(chain); ++i) {
    const CertificateLife above = LifeOf(sk_X509_value(chain, i));
    if (i == 1 || above.until < lives.ca.until) lives.ca = above;
  }
  sk_X509_pop_free(chain, X509_free);
  ERR_clear_error();
  return lives;
}

std::set<std::string> AnchorsOf(const TlsContext& context) {
  std::set<std::string> anchors;
  STACK_OF(X509_OBJECT)* const held =
      X509_STORE_get0_objects(SSL_CTX_get_cert_store(context.get()));
  for (int i = 0; i < sk_X509_OBJECT_num(held); ++i) {
    const X509* const ca = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(held, i));
    if (ca != nullptr) anchors.insert(KeyOf(ca));
  }
  return anchors;
}

absl::StatusOr<CertificateLives> LivesOf(const TlsFiles& files,
                                         const TlsNames& names) {
  RETURN_IF_ERROR(CheckTlsFiles(files, names).status());
  ASSIGN_OR_RETURN(const TlsContext context, MakeTlsContext(files, names));
  return LivesOf(context);
}

std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  if (certificate == nullptr) return uris;
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
      certificate, NID_subject_alt_name, /*crit=*/nullptr, /*idx=*/nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

}  // namespace pactrain::base
