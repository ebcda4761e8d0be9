#include "tools/cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr int kWidth = 30;
constexpr auto kInterval = std::chrono::milliseconds(50);
constexpr char kClearLine[] = "\r\x1b[K";

// A longer line would go on in the next one, which is not cleared. At most all, if the terminal
// does not say how wide it is.
size_t max_columns() {
  struct winsize size {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col - size_t{1} : std::string::npos;
}

}  // namespace

ProgressBar::ProgressBar(std::string label, bool enabled)
    : label_(std::move(label)), enabled_(enabled && ::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) {
    print_error_text(kClearLine);
  }
}

void ProgressBar::update(int64_t done, int64_t total, const std::string& detail) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (drawn_ && now - last_ < kInterval)) {
    return;
  }
  drawn_ = true;
  last_ = now;
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 0.0;
  const auto filled = static_cast<size_t>(share * kWidth);
  const std::string line = fmt::format("{} [{:<{}}] {:3.0f} % {}", label_, std::string(filled, '#'),
                                       kWidth, 100.0 * share, detail);
  print_error_text(kClearLine + line.substr(0, max_columns()));
}

}  // namespace sparsellm
