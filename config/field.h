// A setting is a field of a configuration message: its names, and its values as
// words. Fields are string, uint32, double, bool or repeated string.
#ifndef PACTRAIN_CONFIG_FIELD_H_
#define PACTRAIN_CONFIG_FIELD_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace pactrain::config {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// "listen-metrics", "--listen-metrics" and, for prefix PACTRAIN_AGENT,
// "PACTRAIN_AGENT_LISTEN_METRICS".
std::string KeyOf(const FieldDescriptor& field);
std::string FlagOf(const FieldDescriptor& field);
std::string VariableOf(absl::string_view prefix, const FieldDescriptor& field);

std::vector<const FieldDescriptor*> FieldsOf(const Descriptor& settings);
// Null: there is none.
const FieldDescriptor* FindKey(const Descriptor& settings,
                               absl::string_view key);

// 'text' for a message: escaped to one line, cut where it is long.
std::string Quoted(absl::string_view text);

// Sets `field` to what `text` says; a list gets its parts between commas added.
// InvalidArgument: 'text' is not ... and what is allowed; nothing is set.
absl::Status SetFromText(const FieldDescriptor& field, absl::string_view text,
                         Message& message);

// The words that SetFromText() reads back; of a list, one for each element.
std::vector<std::string> TextsOf(const FieldDescriptor& field,
                                 const Message& message);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_FIELD_H_
