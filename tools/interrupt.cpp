#include "tools/interrupt.h"

#include <signal.h>

namespace sparsellm {
namespace {

// A signal handler can reach nothing but a global.
volatile sig_atomic_t interrupt_mark = 0;

void set_mark(int) { interrupt_mark = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction before {};
  if (sigaction(SIGINT, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) {
    return;
  }
  interrupt_mark = 0;
  struct sigaction action {};
  action.sa_handler = set_mark;
  action.sa_flags = SA_RESETHAND;  // without SA_RESTART: a read from the terminal ends too
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_mark != 0; }

void throw_if_interrupted() {
  if (interrupted()) {
    throw Interrupted{};
  }
}

}  // namespace sparsellm
