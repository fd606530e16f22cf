#include "config/field.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::config {
namespace {

absl::Status Not(absl::string_view text, absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text), " is not ", allowed));
}

absl::Status CheckText(const FieldDescriptor& field, absl::string_view text) {
  if (std::any_of(text.begin(), text.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return Not(text, "free of control characters");
  }
  const auto& options = field.options();
  const int choices = options.ExtensionSize(v1::choice);
  if (choices == 0) return absl::OkStatus();
  std::vector<std::string> allowed;
  for (int i = 0; i < choices; ++i) {
    allowed.push_back(options.GetExtension(v1::choice, i));
    if (text == allowed.back()) return absl::OkStatus();
  }
  const std::string last = allowed.back();
  allowed.pop_back();
  return Not(text, absl::StrCat(absl::StrJoin(allowed, ", "), " or ", last));
}

bool InRange(const v1::Range& range, double value) {
  return value >= range.least() && value <= range.most();  // Not NaN either.
}

std::string RangeText(const v1::Range& range) {
  return absl::StrCat("from ", range.least(), " to ", range.most());
}

std::string DoubleText(double value) {
  std::array<char, 32> text;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return std::string(text.data(), end);
}

}  // namespace

std::string KeyOf(const FieldDescriptor& field) {
  return absl::StrReplaceAll(field.name(), {{"_", "-"}});
}

std::string FlagOf(const FieldDescriptor& field) {
  return absl::StrCat("--", KeyOf(field));
}

std::string VariableOf(absl::string_view prefix, const FieldDescriptor& field) {
  return absl::StrCat(prefix, "_", absl::AsciiStrToUpper(field.name()));
}

std::vector<const FieldDescriptor*> FieldsOf(const Descriptor& settings) {
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < settings.field_count(); ++i) {
    fields.push_back(settings.field(i));
  }
  return fields;
}

const FieldDescriptor* FindKey(const Descriptor& settings,
                               absl::string_view key) {
  for (const FieldDescriptor* field : FieldsOf(settings)) {
    if (KeyOf(*field) == key) return field;
  }
  return nullptr;
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kLongest = 100;
  if (text.size() <= kLongest) {
    return absl::StrCat("'", absl::Utf8SafeCEscape(text), "'");
  }
  return absl::StrCat("'", absl::CEscape(text.substr(0, kLongest)), "...'");
}

absl::Status SetFromText(const FieldDescriptor& field, absl::string_view text,
                         Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const v1::Range& range = field.options().GetExtension(v1::range);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      const absl::Status status = CheckText(field, text);
      if (!status.ok()) return status;
      if (!field.is_repeated()) {
        reflection.SetString(&message, &field, std::string(text));
        return status;
      }
      for (absl::string_view part :
           absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        reflection.AddString(&message, &field,
                             std::string(absl::StripAsciiWhitespace(part)));
      }
      return status;
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value = 0;
      if (!absl::SimpleAtoi(text, &value) || !InRange(range, value)) {
        return Not(text, absl::StrCat("a whole number ", RangeText(range)));
      }
      reflection.SetUInt32(&message, &field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !InRange(range, value)) {
        return Not(text, absl::StrCat("a number ", RangeText(range)));
      }
      reflection.SetDouble(&message, &field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (text != "true" && text != "false") return Not(text, "true or false");
      reflection.SetBool(&message, &field, text == "true");
      return absl::OkStatus();
    }
    default:
      PT_CHECK(!"a setting of this type");
      return absl::OkStatus();
  }
}

std::vector<std::string> TextsOf(const FieldDescriptor& field,
                                 const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.is_repeated()) {
    std::vector<std::string> texts;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      texts.push_back(reflection.GetRepeatedString(message, &field, i));
    }
    return texts;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return {reflection.GetString(message, &field)};
    case FieldDescriptor::CPPTYPE_UINT32:
      return {absl::StrCat(reflection.GetUInt32(message, &field))};
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return {DoubleText(reflection.GetDouble(message, &field))};
    case FieldDescriptor::CPPTYPE_BOOL:
      return {reflection.GetBool(message, &field) ? "true" : "false"};
    default:
      PT_CHECK(!"a setting of this type");
      return {};
  }
}

}  // namespace pactrain::config
