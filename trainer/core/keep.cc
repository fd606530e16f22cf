#include "trainer/core/keep.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "trainer/core/mask_sets.h"
#include "trainer/core/text.h"

namespace pactrain::trainer {
namespace {

std::string Escaped(const std::string& name) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const char c : name) {
    if (c >= ' ' && c <= '~') {
      text += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  if (text.empty()) return "(no name)";
  constexpr size_t kLongest = wire::kNameBytes - 1;
  if (text.size() <= kLongest) return text;
  return "..." + text.substr(text.size() - kLongest + 3);
}

// Indices of the largest kKeepParameters, ascending.
std::vector<size_t> Largest(const std::vector<ParameterKeep>& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parameters[a].elements > parameters[b].elements;
  });
  order.resize(std::min(order.size(), wire::kKeepParameters));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

Error MakeKeep(const wire::Digest128& mask_digest,
               const std::vector<ParameterKeep>& parameters,
               wire::Keep* message) {
  *message = {};
  message->header = {wire::Kind::kKeep, sizeof(*message)};
  message->mask_digest = mask_digest;
  for (const ParameterKeep& parameter : parameters) {
    if (parameter.kept > parameter.elements ||
        parameter.elements > kMaxElements - message->others_elements) {
      return Invalid("parameter " + Escaped(parameter.name) + " keeps " +
                     std::to_string(parameter.kept) + " of " +
                     std::to_string(parameter.elements) +
                     " elements, allowed kept <= elements and together <= " +
                     std::to_string(kMaxElements) + ".\nCorrect the counts.");
    }
    message->others_kept += parameter.kept;
    message->others_elements += parameter.elements;
  }
  for (const size_t index : Largest(parameters)) {
    const ParameterKeep& parameter = parameters[index];
    wire::Keep::Parameter& out = message->parameters[message->count++];
    out.kept = parameter.kept;
    out.elements = parameter.elements;
    SetText(out.name, Escaped(parameter.name));
    message->others_kept -= parameter.kept;
    message->others_elements -= parameter.elements;
  }
  message->others = static_cast<uint32_t>(parameters.size()) - message->count;
  return {};
}

}  // namespace pactrain::trainer
