#include "config/settings.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

// Would YAML read `text` as this very string, without quotes?
bool IsPlain(absl::string_view text) {
  constexpr absl::string_view kSafe = "._/:+-=";
  if (text.empty() || text.back() == ':') return false;
  if (!absl::ascii_isalnum(text.front()) && text.front() != '/') return false;
  if (absl::AsciiStrToLower(text) == "null") return false;
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) || kSafe.find(c) != kSafe.npos;
  });
}

// Values hold no control characters (field.cc).
std::string Scalar(const std::string& text) {
  if (IsPlain(text)) return text;
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

std::string ValueOf(const FieldDescriptor& field, const Message& values) {
  std::vector<std::string> texts = TextsOf(field, values);
  for (std::string& text : texts) text = Scalar(text);
  if (!field.is_repeated()) return texts.front();
  return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}

}  // namespace

absl::Status Settings::Assign(const FieldDescriptor& field,
                              const std::vector<std::string>& texts,
                              Origin origin) {
  PT_CHECK(field.is_repeated() || texts.size() == 1);
  // Aside, so that a mistake leaves the old value.
  const std::unique_ptr<Message> changed(values_.New());
  changed->CopyFrom(values_);
  changed->GetReflection()->ClearField(changed.get(), &field);
  for (const std::string& text : texts) {
    const absl::Status set = SetFromText(field, text, *changed);
    if (!set.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin.where, ": ", absl::string_view(set.message())));
    }
  }
  values_.CopyFrom(*changed);
  origins_[field.number()] = std::move(origin);
  return absl::OkStatus();
}

std::string Settings::Where(absl::string_view key) const {
  const FieldDescriptor* field = FindKey(*values_.GetDescriptor(), key);
  PT_CHECK(field != nullptr);
  const auto origin = origins_.find(field->number());
  return origin == origins_.end() ? FlagOf(*field) : origin->second.where;
}

absl::Status Settings::At(absl::string_view key,
                          const absl::Status& status) const {
  const std::string where = Where(key);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(where, ": ", absl::string_view(status.message())));
}

std::string Settings::ToYaml() const {
  std::string yaml;
  for (const FieldDescriptor* field : FieldsOf(*values_.GetDescriptor())) {
    if (field->has_presence() &&
        !values_.GetReflection()->HasField(values_, field)) {
      absl::StrAppend(&yaml, "# ", KeyOf(*field), ":  # not set; ",
                      field->options().GetExtension(v1::help), "\n");
      continue;
    }
    const auto origin = origins_.find(field->number());
    absl::StrAppend(
        &yaml, KeyOf(*field), ": ", ValueOf(*field, values_), "  # ",
        origin == origins_.end() ? "default"
                                 : absl::Utf8SafeCEscape(origin->second.note),
        "\n");
  }
  return yaml;
}

}  // namespace pactrain::config
