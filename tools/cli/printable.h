#pragma once

#include <string>
#include <string_view>

namespace sparsellm {

// Text on one line that a terminal can show: control characters, line separators, marks that change
// the direction of writing, and bytes that are not UTF-8 become escapes (\n, \t, \r, \xNN for each
// byte); a backslash becomes two.
std::string printable(std::string_view text);

// The same for messages, whose backslashes are those of escapes already: each such character
// becomes a space, and what is in the middle of a very long text is left out.
std::string one_line(std::string_view text);

}  // namespace sparsellm
