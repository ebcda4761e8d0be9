#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sparsellm {

// One line on stderr that is drawn over and over; nothing at all when stderr is not a terminal or
// `enabled` is false. Cut to the width of the terminal, removed at the end.
class ProgressBar {
 public:
  ProgressBar(std::string label, bool enabled);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `detail`, in ASCII, follows the bar, e.g. "120 tokens/s".
  void update(int64_t done, int64_t total, const std::string& detail = {});

 private:
  std::string label_;
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace sparsellm
