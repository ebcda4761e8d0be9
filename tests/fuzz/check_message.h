#pragma once

#include "kernels/base/error.h"

namespace sparsellm::fuzz {

// What the text of every Error keeps to, whatever the file holds: one line of printable ASCII,
// since it goes to a terminal, and of bounded length.
void check_message(const Error& error);

}  // namespace sparsellm::fuzz
