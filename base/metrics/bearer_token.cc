#include "base/metrics/bearer_token.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {
namespace {

absl::Status CheckToken(const std::string& file, absl::string_view shown,
                        absl::string_view another) {
  const auto token = ReadToken("the token", file);
  if (!token.ok()) return absl::PermissionDeniedError(token.status().message());
  if (shown.size() == token->size() &&
      CRYPTO_memcmp(shown.data(), token->data(), token->size()) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(another);
}

}  // namespace

absl::StatusOr<std::string> ReadToken(const std::string& name,
                                      const std::string& file) {
  RETURN_IF_ERROR(CheckSecretFile(name, file));
  std::ifstream stream(file);
  std::string text(kMaxTokenBytes + 2, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  const bool word = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!word || token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", file, " holds no token, which is one word of ",
                     kMinTokenBytes, " to ", kMaxTokenBytes,
                     " printable characters; make one: openssl rand -hex 32"));
  }
  return std::string(token);
}

absl::Status CheckBearer(const std::string& file, const char* authorization) {
  if (authorization == nullptr) {
    return absl::PermissionDeniedError("it showed no bearer token");
  }
  absl::string_view shown = authorization;
  if (!absl::StartsWithIgnoreCase(shown, "bearer ")) {
    return absl::PermissionDeniedError("what it showed is no bearer token");
  }
  return CheckToken(file, absl::StripAsciiWhitespace(shown.substr(7)),
                    "its bearer token is another one");
}

absl::Status CheckBearerOrPassword(const std::string& file,
                                   const char* authorization) {
  if (authorization == nullptr ||
      !absl::StartsWithIgnoreCase(authorization, "basic ")) {
    return CheckBearer(file, authorization);
  }
  std::string pair;  // "user:password".
  if (!absl::Base64Unescape(absl::StripAsciiWhitespace(authorization + 6),
                            &pair) ||
      pair.find(':') == pair.npos) {
    return absl::PermissionDeniedError("what it showed holds no password");
  }
  return CheckToken(file, absl::string_view(pair).substr(pair.find(':') + 1),
                    "its password is another one");
}

}  // namespace pactrain::base
