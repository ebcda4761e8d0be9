#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace sparsellm {

// A device that has been busy, tuning say, clocks lower: what takes long would be the slower the
// later it is measured. Each rest() is as long as the device may have been busy since the one
// before.
class DeviceRest {
 public:
  void rest() {
    constexpr std::chrono::milliseconds kMax{100};
    const auto busy = std::chrono::steady_clock::now() - rested_;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(busy, kMax));
    rested_ = std::chrono::steady_clock::now();
  }

 private:
  std::chrono::steady_clock::time_point rested_ = std::chrono::steady_clock::now();
};

}  // namespace sparsellm
