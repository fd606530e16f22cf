// Text from outside, fit for a line of a log, a table or a terminal.
//
// Pure function.
#ifndef PACTRAIN_BASE_ONE_LINE_H_
#define PACTRAIN_BASE_ONE_LINE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// `text` with what could begin another line, move a cursor or turn the order of
// what is shown written out: control characters ("\x0a"), those of Unicode
// that are not seen or change direction ("\u{202e}"), and bytes that are no
// UTF-8 ("\xff"). All else stays as it is.
std::string OneLine(absl::string_view text);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_ONE_LINE_H_
