// A checkpoint that is cut while it is loaded.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/engine.h"
#include "kernels/base/lost_pages.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

TEST(ShrinkingCheckpoint, IsAnErrorWhateverIsDoneWithIt) {
  survive_lost_pages();
  for (const std::string format : {"", "dense", "tca_bme", "tiled_csl"}) {
    for (uintmax_t kept : {uintmax_t{100}, uintmax_t{4096 * 3}, uintmax_t{9'000'000}}) {
      const testing::TempDir folder;
      const fs::path model = folder.path() / "model";
      fs::copy(testing::data("models/fable-llama-relu-8m"), model);
      EngineOptions options;
      options.with_tokenizer = false;
      options.weight_format = format;
      // ThreadSanitizer takes the pages that replace lost ones for a write by the thread that met
      // them first, and reads of others for a race.
      options.threads = testing::kThreadSanitized ? 1 : 0;
      bool cut = false;
      options.progress = [&](int64_t, int64_t) {
        if (!cut) {
          fs::resize_file(model / "model.safetensors", kept);
          cut = true;
        }
      };
      EXPECT_TRUE(
          testing::throws_error([&] { Engine::load(model, options); }, "it has become shorter"))
          << format << ", " << kept;
      EXPECT_TRUE(cut);
    }
  }
}

}  // namespace
}  // namespace sparsellm
