#pragma once

namespace sparsellm {

// Thrown by throw_if_interrupted(); tool_main turns it into the exit code.
struct Interrupted {};

// From here on Ctrl-C (SIGINT), SIGTERM and SIGHUP only set a mark, so that what is half done can
// be cleared away; the second of the same ends the program at once. A signal that the program was
// started to ignore, as SIGHUP is under nohup, stays ignored. Called again, it changes nothing.
void catch_interrupts();
// A Ctrl-C until now counts no more, and the next is the first; the other two still mean the end.
void forget_interrupt();
bool interrupted();
int interrupting_signal();  // 0: there was none
void throw_if_interrupted();

}  // namespace sparsellm
