#include "tools/cli/interrupt.h"

#include <signal.h>

#include <initializer_list>

namespace sparsellm {
namespace {

// A signal handler can reach nothing but a global.
volatile sig_atomic_t interrupt_mark = 0;

void set_mark(int signal) { interrupt_mark = signal; }

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void catch_interrupts() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const bool ends_already = interrupt_mark == signal;
    if (!is_ignored(signal) && !ends_already) {
      struct sigaction action {};
      action.sa_handler = set_mark;
      action.sa_flags = SA_RESETHAND;  // without SA_RESTART: a read from the terminal ends too
      sigaction(signal, &action, nullptr);
    }
  }
}

void forget_interrupt() {
  if (interrupt_mark == SIGINT) {
    interrupt_mark = 0;
  }
  catch_interrupts();
}

bool interrupted() { return interrupt_mark != 0; }

int interrupting_signal() { return interrupt_mark; }

void throw_if_interrupted() {
  if (interrupted()) {
    throw Interrupted{};
  }
}

}  // namespace sparsellm
