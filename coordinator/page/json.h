// Writes JSON, piece by piece. Strings may hold anything: what is no UTF-8
// becomes U+FFFD, and what means something to HTML is escaped too, so that a
// name stays text wherever it lands.
//
//   JsonWriter json;
//   json.Object();
//   json.Key("name").Text(name);
//   json.Key("points").Array().Number(1).Number(2).End();
//   json.End();
//
// Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_JSON_H_
#define PACTRAIN_COORDINATOR_PAGE_JSON_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace pactrain::coordinator {

class JsonWriter {
 public:
  JsonWriter& Object() { return Open('{', '}'); }
  JsonWriter& Array() { return Open('[', ']'); }
  // REQUIRES: an object or array is open.
  JsonWriter& End();
  JsonWriter& Key(absl::string_view key);
  // At most `most` bytes of `text`, and then "...".
  JsonWriter& Text(absl::string_view text, size_t most = 4096);
  JsonWriter& Number(double number);  // null if it is not finite.
  JsonWriter& Number(const std::optional<double>& number);
  JsonWriter& Bool(bool yes) { return Raw(yes ? "true" : "false"); }
  // A whole value that was written before.
  JsonWriter& Raw(absl::string_view json);

  std::string Take() { return std::move(text_); }

 private:
  JsonWriter& Open(char open, char close);
  void Separate();

  std::string text_;
  std::vector<char> ends_;  // Of what is open.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_JSON_H_
