#include "config/yaml.h"

#include <map>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "config/nearest.h"
#include "yaml-cpp/yaml.h"

namespace pactrain::config {
namespace {

// One reading of one file.
class Reader {
 public:
  Reader(const std::string& name, Settings& settings)
      : name_(absl::Utf8SafeCEscape(name)), settings_(settings) {}

  // Throws: YAML::Exception.
  absl::Status Read(const std::string& contents) {
    const std::vector<YAML::Node> documents = YAML::LoadAll(contents);
    if (documents.empty()) return absl::OkStatus();
    if (documents.size() > 1) {
      return Error(documents[1].Mark(),
                   "a second YAML document begins; one is allowed");
    }
    const YAML::Node& root = documents.front();
    if (root.IsNull()) return absl::OkStatus();  // Nothing but comments.
    if (!root.IsMap()) {
      return Error(root.Mark(), "lines 'key: value' are needed");
    }
    for (const auto& entry : root) {
      RETURN_IF_ERROR(ReadEntry(entry.first, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status Error(const YAML::Mark& mark, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(Place(mark), ": ", what));
  }

 private:
  std::string Place(const YAML::Mark& mark) const {
    return mark.is_null() ? name_ : absl::StrCat(name_, ":", mark.line + 1);
  }

  absl::Status ReadEntry(const YAML::Node& key_node, const YAML::Node& value) {
    if (!key_node.IsScalar()) {
      return Error(key_node.Mark(), "a key is a word, like listen");
    }
    const std::string& key = key_node.Scalar();
    const Descriptor& descriptor = *settings_.values().GetDescriptor();
    const FieldDescriptor* field = FindKey(descriptor, key);
    if (field == nullptr) return UnknownKey(key_node.Mark(), key);
    const auto [seen, is_new] = lines_.emplace(key, key_node.Mark().line + 1);
    if (!is_new) {
      return Error(
          key_node.Mark(),
          absl::StrCat("key '", key, "' is there twice, first in line ",
                       seen->second));
    }
    const std::string place = Place(key_node.Mark());
    std::vector<std::string> texts;
    RETURN_IF_ERROR(ReadValue(*field, value, key_node.Mark(), texts));
    return settings_.Assign(*field, texts,
                            {place, absl::StrCat(place, ": ", key)});
  }

  absl::Status ReadValue(const FieldDescriptor& field, const YAML::Node& value,
                         const YAML::Mark& mark,
                         std::vector<std::string>& texts) const {
    if (value.IsScalar()) {
      texts.push_back(value.Scalar());
      return absl::OkStatus();
    }
    const char* wanted =
        field.is_repeated() ? "a list of words" : "a single value";
    const std::string key = KeyOf(field);
    if (!value.IsSequence() || !field.is_repeated()) {
      const char* came = value.IsNull()       ? "has no value"
                         : value.IsSequence() ? "is a list"
                                              : "is a map";
      return Error(mark, absl::StrCat(key, ": ", came, "; ", wanted,
                                      " is needed, or no such line"));
    }
    for (const YAML::Node& element : value) {
      if (!element.IsScalar()) {
        return Error(element.Mark(), absl::StrCat(key,
                                                  ": an element is not a "
                                                  "word; ",
                                                  wanted, " is needed"));
      }
      texts.push_back(element.Scalar());
    }
    return absl::OkStatus();
  }

  absl::Status UnknownKey(const YAML::Mark& mark,
                          const std::string& key) const {
    std::vector<std::string> keys;
    for (const FieldDescriptor* field :
         FieldsOf(*settings_.values().GetDescriptor())) {
      keys.push_back(KeyOf(*field));
    }
    const std::string nearest = Nearest(key, keys);
    return Error(
        mark,
        absl::StrCat(
            "unknown key ", Quoted(key), "; ",
            nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? "),
            "allowed are ", absl::StrJoin(keys, ", ")));
  }

  const std::string name_;
  Settings& settings_;
  std::map<std::string, int> lines_;  // Of the keys that were read.
};

}  // namespace

absl::Status ReadYaml(const std::string& contents, const std::string& name,
                      Settings& settings) {
  Reader reader(name, settings);
  try {
    return reader.Read(contents);
  } catch (const YAML::Exception& error) {
    return reader.Error(error.mark,
                        absl::StrCat("not YAML: ", Quoted(error.msg)));
  }
}

}  // namespace pactrain::config
