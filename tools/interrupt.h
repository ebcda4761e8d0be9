#pragma once

namespace sparsellm {

// Thrown by throw_if_interrupted(); tool_main turns it into the exit code.
struct Interrupted {};

// From here on Ctrl-C only sets a mark; a second one ends the program at once.
void catch_interrupts();
bool interrupted();
void throw_if_interrupted();

}  // namespace sparsellm
