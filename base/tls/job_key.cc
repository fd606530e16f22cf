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

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/secret.h"
#include "base/status_macros.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {
namespace {

constexpr size_t kKeyBytes = Secret::kBytes;
constexpr size_t kMaxText = 1024;  // Of a file, with white space around.
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
  Secret key, ca, id;
  if (!Decode(text, key)) return absl::InvalidArgumentError(kAllowed);
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

absl::StatusOr<JobKey> JobKey::FromFile(const std::string& name,
                                        const std::string& path) {
  RETURN_IF_ERROR(CheckSecretFile(name, path));
  std::string text(kMaxText, '\0');
  std::ifstream file(path, std::ios::binary);
  const bool open = file.is_open();
  file.read(text.data(), kMaxText);
  text.resize(static_cast<size_t>(file.gcount()));
  auto key = FromText(text);
  OPENSSL_cleanse(text.data(), text.size());
  if (key.ok()) return key;
  return absl::Status(
      key.status().code(),
      absl::StrCat(name, ": ", path, " ",
                   open ? key.status().message() : "cannot be opened"));
}

absl::StatusOr<JobKey::Certificate> JobKey::Sign(const Request& request) const {
  Certificate made(X509_new(), X509_free);
  bool good = made != nullptr &&
              X509_set_version(made.get(), X509_VERSION_3) == 1 &&
              ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()),
                                      request.serial) == 1 &&
              SetTimes(made.get(), request.from, request.to) &&
              SetName(X509_get_subject_name(made.get()), request.name) &&
              SetName(X509_get_issuer_name(made.get()),
                      absl::StrCat("PacTrain job key ", id_)) &&
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

absl::StatusOr<std::string> JobKey::CaPem() const {
  Request request{absl::StrCat("PacTrain job key ", id_),
                  ca_key_.get(),
                  /*serial=*/1,
                  kAlwaysFrom,
                  kAlwaysTo,
                  {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                   {NID_key_usage, "critical,keyCertSign"}}};
  ASSIGN_OR_RETURN(const Certificate ca, Sign(request));
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), ca.get()) != 1) {
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
      PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0,
                               nullptr, nullptr) != 1) {
    return Failed("write a certificate");
  }
  return TextOf(bio.get());
}

absl::Status WriteNewJobKey(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, JobKey::NewText());
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
