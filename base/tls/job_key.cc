#include "base/tls/job_key.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/secret.h"
#include "base/status_macros.h"
#include "base/tls/certificate_facts.h"

namespace pactrain::base {
namespace {

constexpr size_t kKeyBytes = Secret::kBytes;
// Of a bound key: "bound:HOST:", and in base64 its 32 bytes and two
// certificates.
constexpr char kBound[] = "bound:";
constexpr char kAllowed[] =
    "is no job key; allowed are 64 hex digits, or 32 bytes in base64 "
    "(pactrain-admin new-key FILE makes one)";
// The authority's: clocks are not asked.
constexpr absl::Time kAlwaysFrom = absl::FromUnixSeconds(946684800);   // 2000
constexpr absl::Time kAlwaysTo = absl::FromUnixSeconds(253402300799);  // 9999

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

absl::Status Failed(absl::string_view what) {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(
      "OpenSSL cannot ", what, ": ", reason == nullptr ? "unknown" : reason));
}

bool Decode(absl::string_view text, Secret& key) {
  text = absl::StripAsciiWhitespace(text);
  std::string bytes;
  bool good;
  if (text.size() == 2 * kKeyBytes) {
    good = text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
    if (good) bytes = absl::HexStringToBytes(text);
  } else {
    good = absl::Base64Unescape(text, &bytes) && bytes.size() == kKeyBytes;
  }
  if (good) std::memcpy(key.bytes.data(), bytes.data(), kKeyBytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return good;
}

// HKDF-SHA256; `purpose` keeps what is derived for one thing apart from
// another.
absl::Status Derive(const Secret& key, const std::string& purpose,
                    Secret& out) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  std::string digest = "SHA256", info = purpose;
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY,
                                        const_cast<uint8_t*>(key.bytes.data()),
                                        key.bytes.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(),
                                        info.size()),
      OSSL_PARAM_construct_end()};
  if (context == nullptr || EVP_KDF_derive(context.get(), out.bytes.data(),
                                           out.bytes.size(), parameters) != 1) {
    return Failed("derive a key");
  }
  return absl::OkStatus();
}

bool Extend(X509* certificate, int nid, const std::string& value) {
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)>
      extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()),
                X509_EXTENSION_free);
  return extension != nullptr &&
         X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetName(X509_NAME* name, const std::string& text) {
  return X509_NAME_add_entry_by_txt(
             name, "CN", MBSTRING_UTF8,
             reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1,
             0) == 1;
}

bool SetTimes(X509* certificate, absl::Time from, absl::Time to) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(from)) !=
             nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(to)) !=
             nullptr;
}

using Certificate = std::shared_ptr<X509>;

std::string DerOf(X509* certificate) {
  unsigned char* bytes = nullptr;
  const int size = i2d_X509(certificate, &bytes);
  const std::string der(reinterpret_cast<const char*>(bytes),
                        static_cast<size_t>(std::max(size, 0)));
  OPENSSL_free(bytes);
  return der;
}

// The certificate that `bytes` begins with, and takes it off. Null: none does.
Certificate TakeDer(absl::string_view& bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const begin = at;
  Certificate read(d2i_X509(nullptr, &at, static_cast<long>(bytes.size())),
                   X509_free);
  if (read != nullptr) bytes.remove_prefix(static_cast<size_t>(at - begin));
  return read;
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

struct JobKey::Request {
  std::string name;
  EVP_PKEY* key;
  uint64_t serial;
  absl::Time from, to;
  std::vector<std::pair<int, std::string>> extensions;
};

absl::StatusOr<std::string> JobKey::NewText() {
  Secret key;
  if (RAND_priv_bytes(key.bytes.data(), kKeyBytes) != 1) {
    return Failed("give random bytes");
  }
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(key.bytes.data()), kKeyBytes));
}

absl::StatusOr<JobKey> JobKey::FromText(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (absl::StartsWith(text, kBound)) return FromBoundText(text);
  Secret key;
  if (!Decode(text, key)) return absl::InvalidArgumentError(kAllowed);
  return FromSecret(key);
}

absl::StatusOr<std::string> JobKey::NewBoundText(
    const std::string& host) const {
  if (!host_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a key of ", host_,
                     " alone; make it of the key that this one was "
                     "made of"));
  }
  Secret secret;
  uint64_t serial = 0;
  if (RAND_priv_bytes(secret.bytes.data(), kKeyBytes) != 1 ||
      RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) !=
          1) {
    return Failed("give random bytes");
  }
  ASSIGN_OR_RETURN(const JobKey made, FromSecret(secret));
  ASSIGN_OR_RETURN(const Certificate first, SignOwn());
  // DNS names are for Prometheus, and no business of a bound key.
  ASSIGN_OR_RETURN(const Certificate between,
                   Sign({NameOfJobKey(made.id_),
                         made.ca_key_.get(),
                         serial,
                         kAlwaysFrom,
                         kAlwaysTo,
                         {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                          {NID_key_usage, "critical,keyCertSign"},
                          {NID_name_constraints,
                           absl::StrCat("critical,permitted;URI:", host,
                                        ",permitted;DNS:none.invalid")}}}));
  std::string bytes(reinterpret_cast<const char*>(secret.bytes.data()),
                    kKeyBytes);
  absl::StrAppend(&bytes, DerOf(first.get()), DerOf(between.get()));
  const std::string text =
      absl::StrCat(kBound, host, ":", absl::Base64Escape(bytes));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return text;
}

absl::StatusOr<JobKey> JobKey::FromBoundText(absl::string_view text) {
  absl::ConsumePrefix(&text, kBound);
  const size_t colon = text.find(':');
  std::string bytes;
  if (colon == text.npos ||
      !absl::Base64Unescape(text.substr(colon + 1), &bytes) ||
      bytes.size() < kKeyBytes) {
    return absl::InvalidArgumentError(kAllowed);
  }
  Secret secret;
  std::memcpy(secret.bytes.data(), bytes.data(), kKeyBytes);
  absl::string_view rest = absl::string_view(bytes).substr(kKeyBytes);
  const Certificate first = TakeDer(rest), between = TakeDer(rest);
  OPENSSL_cleanse(bytes.data(), kKeyBytes);
  ASSIGN_OR_RETURN(JobKey key, FromSecret(secret));
  if (first == nullptr || between == nullptr || !rest.empty() ||
      X509_check_private_key(between.get(), key.ca_key_.get()) != 1 ||
      X509_verify(between.get(), X509_get0_pubkey(first.get())) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(kAllowed);
  }
  key.host_ = std::string(text.substr(0, colon));
  key.first_ = first;
  key.between_ = between;
  return key;
}

absl::StatusOr<JobKey> JobKey::FromSecret(const Secret& key) {
  Secret ca, id;
  RETURN_IF_ERROR(Derive(key, "pactrain job key: authority", ca));
  RETURN_IF_ERROR(Derive(key, "pactrain job key: id", id));
  Key ca_key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr,
                                          ca.bytes.data(), kKeyBytes),
             EVP_PKEY_free);
  if (ca_key == nullptr) return Failed("make an Ed25519 key");
  return JobKey(std::move(ca_key),
                absl::BytesToHexString(absl::string_view(
                    reinterpret_cast<const char*>(id.bytes.data()), 8)));
}

absl::StatusOr<JobKey::Certificate> JobKey::Sign(const Request& request) const {
  Certificate made(X509_new(), X509_free);
  bool good = made != nullptr &&
              X509_set_version(made.get(), X509_VERSION_3) == 1 &&
              ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()),
                                      request.serial) == 1 &&
              SetTimes(made.get(), request.from, request.to) &&
              SetName(X509_get_subject_name(made.get()), request.name) &&
              SetName(X509_get_issuer_name(made.get()), NameOfJobKey(id_)) &&
              X509_set_pubkey(made.get(), request.key) == 1;
  for (const auto& [nid, value] : request.extensions) {
    good = good && Extend(made.get(), nid, value);
  }
  // Ed25519 has its digest in it.
  if (!good || X509_sign(made.get(), ca_key_.get(), nullptr) == 0) {
    return Failed("make a certificate");
  }
  return made;
}

absl::StatusOr<JobKey::Certificate> JobKey::SignOwn() const {
  return Sign({NameOfJobKey(id_),
               ca_key_.get(),
               /*serial=*/1,
               kAlwaysFrom,
               kAlwaysTo,
               {{NID_basic_constraints, "critical,CA:TRUE,pathlen:1"},
                {NID_key_usage, "critical,keyCertSign"}}});
}

absl::StatusOr<std::string> JobKey::CaPem() const {
  Certificate first = first_;
  if (first == nullptr) {
    ASSIGN_OR_RETURN(first, SignOwn());
  }
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), first.get()) != 1) {
    return Failed("write a certificate");
  }
  return TextOf(bio.get());
}

absl::StatusOr<std::string> JobKey::Issue(const std::string& uri,
                                          absl::Time from,
                                          absl::Time to) const {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  uint64_t serial = 0;
  if (key == nullptr || RAND_bytes(reinterpret_cast<unsigned char*>(&serial),
                                   sizeof serial) != 1) {
    return Failed("make a key");
  }
  Request request{"PacTrain",
                  key.get(),
                  serial,
                  from,
                  to,
                  {{NID_basic_constraints, "critical,CA:FALSE"},
                   {NID_key_usage, "critical,digitalSignature"},
                   {NID_ext_key_usage, "serverAuth,clientAuth"},
                   {NID_subject_alt_name, absl::StrCat("URI:", uri)}}};
  ASSIGN_OR_RETURN(const Certificate leaf, Sign(request));
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), leaf.get()) != 1 ||
      (between_ != nullptr &&
       PEM_write_bio_X509(bio.get(), between_.get()) != 1) ||
      PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0,
                               nullptr, nullptr) != 1) {
    return Failed("write a certificate");
  }
  return TextOf(bio.get());
}

absl::Status WriteNewJobKey(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, JobKey::NewText());
  return WriteJobKey(path, std::move(text));
}

absl::Status WriteJobKey(const std::string& path, std::string text) {
  text += '\n';
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write(fd, text.data(), text.size()) ==
                                      static_cast<ssize_t>(text.size());
  const int error = errno;
  OPENSSL_cleanse(text.data(), text.size());
  if (fd >= 0) close(fd);
  if (written) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "FILE: ", path, " cannot be written (", std::strerror(error),
      "); name a file that is not there yet, in a folder of yours"));
}

}  // namespace pactrain::base
