// HMAC-SHA256: what only holders of a key can make of some texts.
#ifndef PACTRAIN_BASE_TLS_MAC_H_
#define PACTRAIN_BASE_TLS_MAC_H_

#include <string>
#include <vector>

#include "base/secret.h"

namespace pactrain::base {

// Of the fields, each with its length before it, so that no text can pass from
// one to the next. The first says what it is for.
Secret ComputeMac(const Secret& key, const std::vector<std::string>& fields);
// Takes as long wherever they differ.
bool IsSameMac(const Secret& a, const Secret& b);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_MAC_H_
