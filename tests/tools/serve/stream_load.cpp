// Serves a stand-in that makes tokens at a steady pace, to see what the server itself costs:
//   stream_load MODEL_DIRECTORY PORT STEP_MILLISECONDS
// until Ctrl-C; then it prints what its threads took, by token. The directory is read for its
// tokenizer. A client such as `sparsellm-bench throughput --url` makes the load.

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <optional>
#include <string>
#include <thread>

#include "kernels/base/open_directory.h"
#include "tokenizer/tokenizer.h"
#include "tools/cli/interrupt.h"
#include "tools/serve/server.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

// One token for each sample, each step, at the step's time.
class PacedEngine final : public ServedEngine {
 public:
  explicit PacedEngine(std::chrono::milliseconds step) : step_(step) {}

  int64_t submit(Request request, OnToken on_token) override {
    const int64_t id = next_id_++;
    for (int32_t sample = 0; sample < request.samples; ++sample) {
      live_.push_back({.id = id,
                       .sample = sample,
                       .left = request.max_tokens,
                       .on_token = on_token,
                       .on_start = sample == 0 ? request.on_start : nullptr});
    }
    return id;
  }
  void cancel(int64_t id) override {
    for (auto it = live_.begin(); it != live_.end();) {
      if (it->id == id) {
        it->on_token({.request = id, .sample = it->sample, .finish = FinishReason::cancelled});
        it = live_.erase(it);
      } else {
        ++it;
      }
    }
  }
  bool step() override {
    if (live_.empty()) {
      return false;
    }
    next_ = std::max(next_ + step_, Clock::now() - step_);
    std::this_thread::sleep_until(next_);
    for (auto it = live_.begin(); it != live_.end();) {
      if (it->on_start) {
        std::exchange(it->on_start, nullptr)();
      }
      const bool last = --it->left <= 0;
      it->on_token({.request = it->id,
                    .sample = it->sample,
                    .token = 300,
                    .text = " token",
                    .finish = last ? std::optional(FinishReason::length) : std::nullopt});
      ++tokens_;
      it = last ? live_.erase(it) : std::next(it);
    }
    return true;
  }
  const std::optional<std::string>& failed() const override { return failed_; }
  Status status() const override { return {}; }

  int64_t tokens() const { return tokens_; }

 private:
  struct Sample {
    int64_t id;
    int32_t sample;
    int64_t left;
    OnToken on_token;
    std::function<void()> on_start;
  };
  std::chrono::milliseconds step_;
  Clock::time_point next_ = Clock::now();
  std::list<Sample> live_;
  int64_t next_id_ = 1;
  int64_t tokens_ = 0;
  std::optional<std::string> failed_;
};

// Microseconds of CPU of each thread of this process, by token.
void print_threads(int64_t tokens) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "schedstat");
    double nanoseconds = 0.0;
    file >> nanoseconds;
    std::printf("thread %s: %.3f s of CPU, %.3f us a token\n", entry.path().filename().c_str(),
                nanoseconds * 1e-9,
                nanoseconds * 1e-3 / static_cast<double>(std::max<int64_t>(tokens, 1)));
  }
}

int run(const std::string& directory, uint16_t port, int step) {
  catch_interrupts();
  const auto tokenizer = load_tokenizer(OpenDirectory(directory));
  PacedEngine engine{std::chrono::milliseconds(step)};
  ServerOptions options;
  options.http.port = port;
  options.limits.samples = 1 << 16;
  options.model = "stand-in";
  options.drain = std::chrono::seconds(1);
  Server server(options, interrupted, [](std::string_view text) {
    std::printf("%.*s\n", static_cast<int>(text.size()), text.data());
  });
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  server.serve({.engine = engine,
                .tokenizer = *tokenizer,
                .context_size = 4096,
                .defaults = {},
                .weights = {}});
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%lld tokens; %.1f MiB at the peak\n", static_cast<long long>(engine.tokens()),
              static_cast<double>(usage.ru_maxrss) / 1024.0);
  print_threads(engine.tokens());
  return 0;
}

}  // namespace
}  // namespace sparsellm

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: stream_load MODEL_DIRECTORY PORT STEP_MILLISECONDS\n", stderr);
    return 2;
  }
  return sparsellm::run(argv[1], static_cast<uint16_t>(std::atoi(argv[2])), std::atoi(argv[3]));
}
