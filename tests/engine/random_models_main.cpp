// Loads random, unevenly pruned models on the first GPU: random_models [COUNT [SEED [FIRST
// [FORMAT]]]]. Each is loaded with an empty cache of kernel choices and with that of another model
// of the same shapes. With FORMAT, all are loaded in that one: a failure can be repeated without
// sparse weights. Exit code 1 if one does not load or takes a wrong token.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/engine/random_models.h"
#include "tests/testing/temp_dir.h"

int main(int argc, char** argv) {
  using namespace sparsellm::testing;
  const int64_t count = argc > 1 ? std::stoll(argv[1]) : 300;
  const uint64_t seed = argc > 2 ? std::stoull(argv[2]) : 1;
  const int64_t first = argc > 3 ? std::stoll(argv[3]) : 0;  // of the list
  const auto model_at = [&](int64_t index) {
    RandomModel model = random_model(index, seed);
    model.format = argc > 4 ? argv[4] : model.format;
    return model;
  };
  const auto start = std::chrono::steady_clock::now();
  const TempDir folder;
  int64_t failed = 0;
  for (int64_t pair = first / 2; pair < (first + count + 1) / 2; ++pair) {
    const auto directory = [&](size_t i) { return folder.path() / std::to_string(i); };
    const auto cache = [&](size_t i) { return folder.path() / (std::to_string(i) + ".json"); };
    {
      std::vector<RandomCheckpoint> both;
      for (size_t i = 0; i < 2; ++i) {
        both.emplace_back(directory(i), model_at(2 * pair + static_cast<int64_t>(i)));
      }
      std::array<std::string, 2> wrong;
      for (size_t i = 0; i < 2; ++i) {
        wrong[i] = both[i].check(cache(i)).wrong;
      }
      for (size_t i = 0; i < 2; ++i) {  // copies, for what a load does not find is added
        if (std::filesystem::exists(cache(1 - i))) {
          std::filesystem::copy_file(cache(1 - i), cache(2 + i));
        }
      }
      for (size_t i = 0; i < 2; ++i) {
        const bool own = !wrong[i].empty();
        if (!own) {
          wrong[i] = both[i].check(cache(2 + i)).wrong;
        }
        if (!wrong[i].empty()) {
          ++failed;
          const int64_t index = 2 * pair + static_cast<int64_t>(i);
          std::printf("%lld: %s, %s cache: %s\n", static_cast<long long>(index),
                      to_string(model_at(index)).c_str(), own ? "empty" : "foreign",
                      wrong[i].c_str());
          std::fflush(stdout);
        }
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      std::filesystem::remove_all(directory(i));
      std::filesystem::remove(cache(i));
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%lld of %lld models failed, seed %llu, %.0f s\n", static_cast<long long>(failed),
              static_cast<long long>((count + 1) / 2 * 2), static_cast<unsigned long long>(seed),
              seconds);
  return failed == 0 ? 0 : 1;
}
