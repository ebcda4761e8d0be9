// Which formats "auto" takes, by made-up times.

#include "models/format_choice.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/registry.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using By = FormatChoice::By;

constexpr Device kCuda{Device::Kind::cuda, 0};  // nothing runs, so it need not be there
constexpr double kMicro = 1e-6;

LayerKind kind_of(int64_t rows, int64_t columns, double density, int64_t count = 1,
                  std::string stored = {}) {
  LayerKind kind{
      .layer = {.parts = {}, .rows = rows, .columns = columns, .has_bias = true, .activation = {}},
      .weight = {.density = density, .stored = std::move(stored), .dtype = DType::f16},
      .first_weights = {}};
  for (int64_t i = 0; i < count; ++i) {
    kind.first_weights.push_back(fmt::format("{}x{}.{}.weight", rows, columns, i));
  }
  return kind;
}

class FakeMeter : public FormatMeter {
 public:
  explicit FakeMeter(std::map<std::string, Measured> figures) : figures_(std::move(figures)) {}

  Measured measure(const LayerKind&, const WeightFormat& format,
                   std::span<const int64_t> tokens) override {
    calls.emplace_back(format.name());
    seen.assign(tokens.begin(), tokens.end());
    if (on_measure) {
      on_measure(format.name());
    }
    return figures_.at(std::string(format.name()));
  }

  std::vector<std::string> calls;
  std::vector<int64_t> seen;
  std::function<void(std::string_view format)> on_measure;

 private:
  std::map<std::string, Measured> figures_;
};

// A kind that has all three formats as candidates.
class ChooseByTime : public ::testing::Test {
 protected:
  FormatChoice choose(const LayerKind& kind, FormatMeter* meter, std::string_view key = "GPU 1") {
    return choose_by_time(kind, FormatRules::built_in(), options_, meter, cache_, key);
  }
  // With these microseconds and bytes.
  std::string choice(FormatMeter::Measured dense, FormatMeter::Measured tiled,
                     FormatMeter::Measured bitmap) {
    const auto micro = [](FormatMeter::Measured figures) {
      return FormatMeter::Measured{.bytes = figures.bytes, .seconds = figures.seconds * kMicro};
    };
    FakeMeter meter(
        {{"dense", micro(dense)}, {"tiled_csl", micro(tiled)}, {"tca_bme", micro(bitmap)}});
    cache_ = TuneCache();
    return choose(kind_, &meter).format;
  }

  LayerKind kind_ = kind_of(512, 256, 0.3, 1, "tiled_csl");
  ChoiceOptions options_{.device = kCuda, .tokens = {1, 2, 4}};
  TuneCache cache_;
};

TEST_F(ChooseByTime, TheFastest) {
  EXPECT_EQ(choice({900, 30}, {500, 20}, {400, 10}), "tca_bme");
  EXPECT_EQ(choice({900, 30}, {500, 5}, {400, 10}), "tiled_csl");
  EXPECT_EQ(choice({900, 8}, {500, 20}, {400, 10}), "dense");
}

TEST_F(ChooseByTime, OfThoseAsFastTheSmallest) {
  EXPECT_EQ(choice({900, 100}, {500, 101.9}, {600, 101.9}), "tiled_csl");
  EXPECT_EQ(choice({900, 100}, {500, 102.1}, {600, 101.9}), "tca_bme");
  EXPECT_EQ(choice({900, 100}, {500, 102.1}, {600, 102.1}), "dense");
  EXPECT_EQ(choice({500, 101}, {500, 100}, {500, 101}), "tiled_csl");
}

TEST_F(ChooseByTime, MeasuresEachCandidateOnce) {
  FakeMeter meter({{"dense", {900, 3e-5}}, {"tiled_csl", {500, 2e-5}}, {"tca_bme", {400, 1e-5}}});
  const FormatChoice first = choose(kind_, &meter);
  EXPECT_EQ(first.by, By::measurement);
  EXPECT_EQ(first.bytes(), 400);
  EXPECT_EQ(meter.calls, (std::vector<std::string>{"dense", "tiled_csl", "tca_bme"}));
  EXPECT_EQ(meter.seen, options_.tokens);
  ASSERT_EQ(first.times.size(), 3u);
  EXPECT_EQ(first.times[1].bytes, 500);
  EXPECT_NEAR(*first.times[1].seconds, 2e-5, 1e-12);

  const FormatChoice second = choose(kind_, &meter);
  EXPECT_EQ(second.by, By::cache);
  EXPECT_EQ(second.format, "tca_bme");
  EXPECT_EQ(second.bytes(), 400);
  EXPECT_NEAR(*second.times[2].seconds, 1e-5, 1e-9);
  EXPECT_EQ(choose(kind_, nullptr).by, By::cache);
  EXPECT_EQ(meter.calls.size(), 3u);
}

TEST_F(ChooseByTime, MeasuresAgainForAnythingElse) {
  FakeMeter meter({{"dense", {900, 3e-5}}, {"tiled_csl", {500, 2e-5}}, {"tca_bme", {400, 1e-5}}});
  choose(kind_, &meter);
  const auto is_new = [&](const std::function<void(LayerKind&)>& change,
                          std::string_view key = "GPU 1") {
    LayerKind kind = kind_;
    change(kind);
    return choose(kind, &meter, key).by == By::measurement;
  };
  EXPECT_FALSE(is_new([](LayerKind& kind) { kind.weight.density = 0.304; }));  // of one percent
  EXPECT_FALSE(is_new([](LayerKind& kind) { kind.first_weights.emplace_back("another"); }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.density = 0.31; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.rows = 511; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.columns = 128; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.has_bias = false; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.activation.kind = Activation::Kind::relu; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.dtype = DType::bf16; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.stored = "tca_bme"; }));
  EXPECT_TRUE(is_new([](LayerKind&) {}, "GPU 2"));
  options_.tokens = {1, 2};
  EXPECT_TRUE(is_new([](LayerKind&) {}));
}

// What is in the cache may be anything.
TEST_F(ChooseByTime, WhatTheCacheCannotMeanIsMeasured) {
  const testing::TempDir folder;
  const std::filesystem::path path = folder.path() / "cache.json";
  FakeMeter meter({{"dense", {900, 3e-5}}, {"tiled_csl", {500, 2e-5}}, {"tca_bme", {400, 1e-5}}});
  cache_ = TuneCache(path);
  choose(kind_, &meter);
  cache_.save();
  const std::string good =
      "dense 30.000 us 900 bytes; tiled_csl 20.000 us 500 bytes; tca_bme 10.000 us 400 bytes";
  std::string file;
  {
    std::ifstream stream(path);
    file.assign(std::istreambuf_iterator<char>(stream), {});
  }
  const size_t at = file.find(good);
  ASSERT_NE(at, std::string::npos) << file;
  const auto by = [&](const std::string& text) {
    std::string changed = file;
    changed.replace(at, good.size(), text);
    cache_ = TuneCache(folder.write("changed.json", changed));
    EXPECT_EQ(cache_.problem(), "");
    return choose(kind_, &meter).by;
  };
  EXPECT_EQ(by(good), By::cache);
  EXPECT_EQ(by("dense 30 us 900 bytes; tiled_csl none; tca_bme 10 us 400 bytes"), By::cache);
  for (const char* text :
       {"", "dense", "dense 30 us 900 bytes",
        "dense 30 us 900 bytes; tca_bme 10 us 400 bytes; tiled_csl 20 us 500 bytes",
        "dense 30 us 900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes; x",
        "dense nan us 900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes",
        "dense inf us 900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes",
        "dense -1 us 900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes",
        "dense 0 us 900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes",
        "dense 30 us -900 bytes; tiled_csl 20 us 500 bytes; tca_bme 10 us 400 bytes",
        "dense 30 us 9223372036854775807 bytes; tiled_csl none; tca_bme none",
        "dense none; tiled_csl none; tca_bme none",
        "dense 30 us 99999999999999999999 bytes; tiled_csl none; tca_bme none"}) {
    EXPECT_EQ(by(text), By::measurement) << text;
  }
}

TEST_F(ChooseByTime, AFormatThatDoesNotTakeTheWeightIsLeftOut) {
  FakeMeter meter({{"dense", {900, 3e-5}}, {"tiled_csl", {500, 2e-5}}, {"tca_bme", {400, 1e-5}}});
  meter.on_measure = [](std::string_view format) {
    require(format != "tca_bme", "too many nonzeros");
  };
  const FormatChoice first = choose(kind_, &meter);
  EXPECT_EQ(first.format, "tiled_csl");
  EXPECT_FALSE(first.times[2].seconds.has_value());
  const FormatChoice again = choose(kind_, &meter);
  EXPECT_EQ(again.by, By::cache);
  EXPECT_EQ(again.format, "tiled_csl");
  EXPECT_EQ(to_string(again, FormatRules::built_in()),
            "1 layers of 512 x 256, 30.0 % nonzeros: tiled_csl, as measured before (dense 30.0 us, "
            "0.0 MiB; tiled_csl 20.0 us, 0.0 MiB; tca_bme not possible)");
  // The weight itself.
  meter.on_measure = [](std::string_view) { fail("model.safetensors: cannot be read"); };
  EXPECT_TRUE(testing::throws_error([&] { choose(kind_of(64, 64, 0.2), &meter); },
                                    "model.safetensors: cannot be read"));
}

TEST_F(ChooseByTime, ForWantOfMemoryRulesChoose) {
  FakeMeter meter({});
  meter.on_measure = [](std::string_view) { throw OutOfMemory("no memory"); };
  const FormatChoice choice = choose(kind_, &meter);
  EXPECT_EQ(choice.by, By::rules);
  EXPECT_EQ(choice.format, "tca_bme");
  EXPECT_TRUE(choice.times.empty());
  EXPECT_EQ(choose(kind_, nullptr).by, By::rules);
  EXPECT_EQ(choose(kind_of(512, 256, 0.8), nullptr).format, "dense");
}

TEST_F(ChooseByTime, WhatIsLargerThanDenseIsNotTried) {
  FakeMeter meter({});
  const FormatChoice choice = choose(kind_of(512, 256, 1.0), &meter);
  EXPECT_EQ(choice.format, "dense");
  EXPECT_EQ(choice.by, By::no_other);
  EXPECT_EQ(choice.bytes(), 512 * 256 * 2);
  EXPECT_TRUE(meter.calls.empty());
}

TEST(FormatCandidates, AreThoseThatSaveBytesAndTheStoredOne) {
  const auto names = [](const LayerKind& kind, const Device& device = kCuda) {
    std::vector<std::string> all;
    for (const WeightFormat* format : format_candidates(kind, device)) {
      all.emplace_back(format->name());
    }
    return all;
  };
  using Names = std::vector<std::string>;
  const Names all{"dense", "tiled_csl", "tca_bme"};
  EXPECT_EQ(names(kind_of(4096, 4096, 0.3)), all);
  EXPECT_EQ(names(kind_of(4096, 4096, 0.3), {}), all);
  EXPECT_EQ(names(kind_of(4096, 4096, 0.9, 1, "tiled_csl")), all);
  EXPECT_EQ(names(kind_of(4096, 4096, 0.9)), (Names{"dense", "tca_bme"}));
  EXPECT_EQ(names(kind_of(4096, 4096, 0.99)), Names{"dense"});
  LayerKind f32 = kind_of(4096, 4096, 0.1);
  f32.weight.dtype = DType::f32;
  EXPECT_EQ(names(f32), Names{"dense"});
}

TEST(ChooseByRules, IsTheRulesOnAGpuAndWhatIsStoredOnTheCpu) {
  const FormatRules& rules = FormatRules::built_in();
  const ChoiceOptions on_gpu{.device = kCuda, .tokens = {1, 2, 4, 8}};
  const ChoiceOptions on_cpu{.device = {}, .tokens = {1, 2, 4, 8}};
  const auto choose = [&](const LayerKind& kind, const ChoiceOptions& options) {
    const FormatChoice choice = choose_by_rules(kind, rules, options);
    EXPECT_EQ(choice.by, By::rules);
    return choice.format;
  };
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.3), on_gpu), "tca_bme");
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.3, 1, "tiled_csl"), on_gpu), "tca_bme");
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.3, 1, "tiled_csl"), on_cpu), "tiled_csl");
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.3), on_cpu), "tca_bme");
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.7, 1, "tiled_csl"), on_cpu), "dense");
  EXPECT_EQ(choose(kind_of(4096, 4096, 0.7), on_gpu), "dense");
  EXPECT_EQ(choose(kind_of(1, 1, 0.0), on_gpu), "dense");  // no encoding is smaller
  LayerKind f32 = kind_of(4096, 4096, 0.1);
  f32.weight.dtype = DType::f32;
  EXPECT_EQ(choose(f32, on_cpu), "dense");
}

FormatChoice measured(int64_t count, std::vector<FormatTime> times, std::string format) {
  return {.kind = kind_of(64, 64, 0.5, count),
          .format = std::move(format),
          .by = By::measurement,
          .times = std::move(times)};
}

TEST(FitInto, TakesWhatSavesMostBytesForTheLeastTime) {
  const auto start = [] {
    return std::vector<FormatChoice>{
        // 30 bytes for 3 s: 10 a second; or 60 for 12 s: 5 a second
        measured(2, {{"dense", 100, 1.0}, {"tiled_csl", 40, 13.0}, {"tca_bme", 70, 4.0}}, "dense"),
        measured(1, {{"dense", 100, 1.0}, {"tca_bme", 60, 9.0}}, "dense"),  // 5 a second
        measured(1, {{"dense", 100, 9.0}, {"tca_bme", 90, 1.0}}, "tca_bme"),
        {.kind = kind_of(8, 8, 1.0), .format = "dense"},  // 128 bytes by rules
    };
  };
  std::vector<FormatChoice> choices = start();
  EXPECT_EQ(total_bytes(choices), 200 + 100 + 90 + 128);
  const auto formats = [&] {
    std::string all;
    for (const FormatChoice& choice : choices) {
      all += choice.format + (choice.for_memory ? "! " : " ");
    }
    return all;
  };
  fit_into(518, choices);
  EXPECT_EQ(formats(), "dense dense tca_bme dense ");
  fit_into(517, choices);
  EXPECT_EQ(formats(), "tca_bme! dense tca_bme dense ");
  EXPECT_EQ(total_bytes(choices), 458);
  fit_into(457, choices);  // 40 bytes for 8 s before 30 more for 9 s
  EXPECT_EQ(formats(), "tca_bme! tca_bme! tca_bme dense ");
  fit_into(400, choices);
  EXPECT_EQ(formats(), "tiled_csl! tca_bme! tca_bme dense ");
  fit_into(0, choices);  // all that there is to save
  EXPECT_EQ(formats(), "tiled_csl! tca_bme! tca_bme dense ");
  choices = start();
  fit_into(-1000, choices);
  EXPECT_EQ(formats(), "tiled_csl! tca_bme! tca_bme dense ");
}

TEST(FitInto, WhatCostsNoTimeComesFirst) {
  std::vector<FormatChoice> choices{
      measured(1, {{"dense", 100, 1.0}, {"tca_bme", 10, 1.001}}, "dense"),
      measured(1, {{"dense", 100, 1.0}, {"tca_bme", 99, 1.0}}, "dense")};
  fit_into(199, choices);
  EXPECT_EQ(choices[0].format, "dense");
  EXPECT_EQ(choices[1].format, "tca_bme");
}

TEST(FormatChoice, APlannedFormatIsKept) {
  LayerKind kind = kind_of(512, 256, 0.3, 2);
  kind.weight.planned = "tiled_csl";
  const ChoiceOptions options{.device = kCuda, .tokens = {1}};
  FakeMeter meter({});
  TuneCache cache;
  const FormatRules& rules = FormatRules::built_in();
  for (const FormatChoice& choice : {choose_by_rules(kind, rules, options),
                                     choose_by_time(kind, rules, options, &meter, cache, "GPU")}) {
    EXPECT_EQ(choice.format, "tiled_csl");
    EXPECT_EQ(choice.by, By::plan);
    EXPECT_GT(choice.bytes(), 0);
    EXPECT_LT(choice.bytes(), kind.dense_bytes());
    EXPECT_EQ(to_string(choice, rules),
              "2 layers of 512 x 256, 30.0 % nonzeros: tiled_csl, by the plan");
  }
  EXPECT_TRUE(meter.calls.empty());
}

TEST(LayerFormats, HaveAllLayersOfAKind) {
  const std::vector<FormatChoice> choices{measured(2, {}, "tca_bme"),
                                          {.kind = kind_of(8, 8, 1.0), .format = "dense"}};
  EXPECT_EQ(layer_formats(choices), (LayerFormats{{"64x64.0.weight", "tca_bme"},
                                                  {"64x64.1.weight", "tca_bme"},
                                                  {"8x8.0.weight", "dense"}}));
}

}  // namespace
}  // namespace sparsellm
