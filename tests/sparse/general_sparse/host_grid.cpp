#include "tests/sparse/general_sparse/host_grid.h"

#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace sparsellm::testing {
namespace {

constexpr size_t kStackBytes = size_t{1} << 17;
constexpr size_t kWarp = 32;

enum class State : uint8_t { ready, at_exchange, at_barrier, done };

struct Thread {
  ucontext_t context{};
  std::vector<char> stack = std::vector<char>(kStackBytes);
  State state = State::done;
  // Of an exchange.
  const char* what = "";
  unsigned parameter = 0;
  unsigned given = 0;
};

// The block that runs. Its threads are contexts of this one thread of the host.
struct Block {
  ucontext_t scheduler{};
  std::vector<Thread> threads;
  std::vector<std::array<unsigned, kWarp>> exchanged;  // of warps
  const std::function<void()>* body = nullptr;
  size_t running = 0;
  bool forward = false;

  void run();
  void wait(State state) {
    Thread& thread = threads[running];
    thread.state = state;
    swapcontext(&thread.context, &scheduler);
  }
  bool release_warps();
};
Block block;

void run_thread() {
  (*block.body)();
  block.wait(State::done);
}

bool Block::release_warps() {
  bool released = false;
  for (size_t warp = 0; warp < exchanged.size(); ++warp) {
    const auto first = threads.begin() + static_cast<std::ptrdiff_t>(warp * kWarp);
    const auto end = first + kWarp;
    if (!std::all_of(first, end, [](const Thread& t) { return t.state == State::at_exchange; })) {
      continue;
    }
    for (size_t lane = 0; lane < kWarp; ++lane) {
      Thread& thread = first[static_cast<std::ptrdiff_t>(lane)];
      EXPECT_TRUE(std::string(thread.what) == first->what && thread.parameter == first->parameter)
          << "lane " << lane << " does " << thread.what << " " << thread.parameter
          << ", the first lane " << first->what << " " << first->parameter;
      exchanged[warp][lane] = thread.given;
      thread.state = State::ready;
    }
    released = true;
  }
  return released;
}

void Block::run() {
  for (Thread& thread : threads) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, run_thread, 0);
    thread.state = State::ready;
  }
  const auto all_are = [&](State state) {
    return std::all_of(threads.begin(), threads.end(),
                       [&](const Thread& thread) { return thread.state == state; });
  };
  while (!all_are(State::done)) {
    // From first to last, and then from last to first: what lacks a barrier shows in one of them.
    forward = !forward;
    for (size_t i = 0; i < threads.size(); ++i) {
      running = forward ? i : threads.size() - 1 - i;
      if (threads[running].state == State::ready) {
        threadIdx = {.x = static_cast<unsigned>(running)};
        swapcontext(&scheduler, &threads[running].context);
      }
    }
    bool released = release_warps();
    if (all_are(State::at_barrier)) {
      for (Thread& thread : threads) {
        thread.state = State::ready;
      }
      released = true;
    }
    if (!released && !all_are(State::done)) {
      FAIL() << "threads wait for others, which have ended or wait for something else";
    }
  }
}

}  // namespace

void run_grid(HostIndex blocks, unsigned threads, const std::function<void()>& thread) {
  block.threads.resize(threads);
  block.exchanged.resize(threads / kWarp);
  block.body = &thread;
  for (blockIdx.y = 0; blockIdx.y < blocks.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
      block.run();
    }
  }
}

const unsigned* exchange(const char* what, unsigned parameter, unsigned given) {
  Thread& thread = block.threads[block.running];
  thread.what = what;
  thread.parameter = parameter;
  thread.given = given;
  const size_t warp = block.running / kWarp;
  block.wait(State::at_exchange);
  return block.exchanged[warp].data();
}

void wait_for_block() { block.wait(State::at_barrier); }

}  // namespace sparsellm::testing
