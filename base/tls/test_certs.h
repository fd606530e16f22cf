// A CA and certificates for tests, made in the process.
//
// Thread-compatible. Failures are crashes.
#ifndef PACTRAIN_BASE_TLS_TEST_CERTS_H_
#define PACTRAIN_BASE_TLS_TEST_CERTS_H_

#include <openssl/x509.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/tls/tls_files.h"

namespace pactrain::base {

class TestCa {
 public:
  struct Leaf {
    std::vector<std::string> uris;
    int valid_from_s = -3600;  // From now.
    int valid_to_s = 3600;
    int ca_valid_to_s = 0;  // Of a CA between the first and this; 0: none is.
  };

  // Its files lie in `folder`, which exists; two CAs need two folders. Without
  // a name it has one that no other has.
  explicit TestCa(const std::string& folder);
  TestCa(const std::string& folder, const std::string& name);

  // Writes NAME.pem and NAME.key, anew if they are there.
  TlsFiles Issue(const std::string& name, const Leaf& leaf) const;
  TlsFiles Issue(const std::string& name, const std::string& uri) const {
    return Issue(name, Leaf{.uris = {uri}});
  }
  // The list, in PEM, of these certificates that it takes back; each the
  // `cert` of what Issue() gave. Out of date so many seconds from now.
  // `extension`: a critical one, by its OpenSSL number, and value.
  std::string Revoke(const std::vector<TlsFiles>& certificates,
                     int valid_to_s = 3600,
                     std::pair<int, std::string> extension = {}) const;

 private:
  using Key = std::shared_ptr<EVP_PKEY>;
  using Certificate = std::shared_ptr<X509>;
  static Key NewKey();
  struct Authority {
    Key key;
    Certificate certificate;
  };
  static Authority NewAuthority(const std::string& name, const Leaf& life,
                                const Authority* by);
  // `by`: null: itself.
  static Certificate Sign(const std::string& subject, const Key& key,
                          bool is_ca, const Leaf& leaf, const Authority* by);

  const std::string folder_;
  const Authority root_;
};

// Of the job whose key is 64 times `digit`.
TlsFiles IssueByJobKey(char digit, const std::string& uri);
TlsFiles IssueByJobKey(const std::string& text, const std::string& uri);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_TEST_CERTS_H_
