#pragma once

namespace sparsellm {

// Thrown by throw_if_interrupted(); tool_main turns it into the exit code.
struct Interrupted {};

// From here on Ctrl-C only sets a mark, of which there is none at first; a second one ends the
// program at once. Called again, it is the first that counts anew. A program that was started to
// ignore Ctrl-C goes on doing so.
void catch_interrupts();
bool interrupted();
void throw_if_interrupted();

}  // namespace sparsellm
