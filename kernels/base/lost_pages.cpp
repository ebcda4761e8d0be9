#include "kernels/base/lost_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

namespace sparsellm {
namespace {

// A handler of signals reads these, at any moment. A slot is in use as long as `begin` is not 0.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

std::array<Slot, PageGuard::kMaxGuards> slots;
std::mutex slots_mutex;  // of those who take one

// All after the page is replaced: what follows the end of a file that was cut is lost as well, and
// what is not lost is of no use any more.
bool replace_from(uintptr_t address, Slot& slot) {
  const auto page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGE_SIZE));
  const uintptr_t page = address / page_size * page_size;
  slot.lost.store(true);  // before anybody can read a zero
  return ::mmap(reinterpret_cast<void*>(page), slot.end.load() - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load();
    if (begin != 0 && address >= begin && address < slot.end.load() &&
        replace_from(address, slot)) {
      errno = saved_errno;
      return;
    }
  }
  ::signal(SIGBUS, SIG_DFL);  // the access is repeated, and ends the program
}

}  // namespace

void survive_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void PageGuard::cover(const void* data, int64_t bytes) {
  release();
  const std::lock_guard lock(slots_mutex);
  for (int i = 0; i < kMaxGuards; ++i) {
    Slot& slot = slots[static_cast<size_t>(i)];
    if (slot.begin.load() == 0) {
      slot.lost.store(false);
      slot.end.store(reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes));
      slot.begin.store(reinterpret_cast<uintptr_t>(data));
      slot_ = i;
      return;
    }
  }
}

void PageGuard::release() noexcept {
  if (slot_ >= 0) {
    slots[static_cast<size_t>(std::exchange(slot_, -1))].begin.store(0);
  }
}

PageGuard::PageGuard(PageGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

bool PageGuard::lost() const { return slot_ >= 0 && slots[static_cast<size_t>(slot_)].lost.load(); }

}  // namespace sparsellm
