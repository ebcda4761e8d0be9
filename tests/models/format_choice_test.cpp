// Which formats "auto" takes, by made-up times.

#include "models/format_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
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
    kind.weights.push_back(kind.weight);
  }
  return kind;
}

// Of a product of any number of tokens.
struct Figures {
  int64_t bytes = 0;
  double seconds = 0.0;
};

class FakeMeter : public FormatMeter {
 public:
  explicit FakeMeter(std::map<std::string, Figures> figures) : figures_(std::move(figures)) {}

  Measured measure(const LayerKind&, const LayerFormat& in,
                   std::span<const int64_t> tokens) override {
    calls.push_back(to_string(in));
    seen.assign(tokens.begin(), tokens.end());
    if (on_measure) {
      on_measure(to_string(in));
    }
    const Figures figures = figures_.at(to_string(in));
    return {.bytes = figures.bytes, .seconds = std::vector<double>(tokens.size(), figures.seconds)};
  }

  std::vector<std::string> calls;
  std::vector<int64_t> seen;
  std::function<void(std::string_view format)> on_measure;

 private:
  std::map<std::string, Figures> figures_;
};

// A kind that has all formats as candidates.
class ChooseByTime : public ::testing::Test {
 protected:
  FormatChoice choose(const LayerKind& kind, FormatMeter* meter, std::string_view key = "GPU 1") {
    return choose_by_time(kind, FormatRules::built_in(), options_, meter, cache_, key);
  }
  // With these microseconds and bytes.
  std::string choice(Figures dense, Figures tiled, Figures bitmap,
                     Figures general = {.bytes = 600, .seconds = 1000}) {
    const auto micro = [](Figures figures) {
      return Figures{.bytes = figures.bytes, .seconds = figures.seconds * kMicro};
    };
    FakeMeter meter({{"dense", micro(dense)},
                     {"tiled_csl", micro(tiled)},
                     {"tca_bme", micro(bitmap)},
                     {"general_sparse", micro(general)}});
    cache_ = TuneCache();
    return choose(kind_, &meter).in.format;
  }

  LayerKind kind_ = kind_of(512, 256, 0.3, 1, "tiled_csl");
  ChoiceOptions options_{.device = kCuda, .tokens = {1, 2, 4}, .most_tokens = 2048};
  TuneCache cache_;
  FakeMeter meter_{{{"dense", {900, 3e-5}},
                    {"tiled_csl", {500, 2e-5}},
                    {"tca_bme", {400, 1e-5}},
                    {"general_sparse", {600, 4e-5}}}};
};

TEST_F(ChooseByTime, TheFastest) {
  EXPECT_EQ(choice({900, 30}, {500, 20}, {400, 10}), "tca_bme");
  EXPECT_EQ(choice({900, 30}, {500, 5}, {400, 10}), "tiled_csl");
  EXPECT_EQ(choice({900, 8}, {500, 20}, {400, 10}), "dense");
  EXPECT_EQ(choice({900, 30}, {500, 20}, {400, 10}, {700, 5}), "general_sparse");
}

TEST_F(ChooseByTime, OfThoseAsFastTheSmallest) {
  EXPECT_EQ(choice({900, 100}, {500, 101.9}, {600, 101.9}), "tiled_csl");
  EXPECT_EQ(choice({900, 100}, {500, 102.1}, {600, 101.9}), "tca_bme");
  EXPECT_EQ(choice({900, 100}, {500, 102.1}, {600, 102.1}), "dense");
  EXPECT_EQ(choice({500, 101}, {500, 100}, {500, 101}), "tiled_csl");
}

TEST_F(ChooseByTime, MeasuresEachCandidateOnce) {
  const FormatChoice first = choose(kind_, &meter_);
  EXPECT_EQ(first.by, By::measurement);
  EXPECT_EQ(first.bytes(), 400);
  EXPECT_EQ(meter_.calls,
            (std::vector<std::string>{"dense", "tiled_csl", "tca_bme", "general_sparse"}));
  EXPECT_EQ(meter_.seen, options_.tokens);
  ASSERT_EQ(first.times.size(), 4u);
  EXPECT_EQ(first.times[1].bytes, 500);
  EXPECT_NEAR(*first.times[1].seconds, 3 * 2e-5, 1e-12);

  const FormatChoice second = choose(kind_, &meter_);
  EXPECT_EQ(second.by, By::cache);
  EXPECT_EQ(second.in.format, "tca_bme");
  EXPECT_EQ(second.bytes(), 400);
  EXPECT_NEAR(*second.times[2].seconds, 3 * 1e-5, 1e-9);
  EXPECT_EQ(choose(kind_, nullptr).by, By::cache);
  EXPECT_EQ(meter_.calls.size(), 4u);
}

TEST_F(ChooseByTime, MeasuresAgainForAnythingElse) {
  choose(kind_, &meter_);
  const auto is_new = [&](const std::function<void(LayerKind&)>& change,
                          std::string_view key = "GPU 1") {
    LayerKind kind = kind_;
    change(kind);
    return choose(kind, &meter_, key).by == By::measurement;
  };
  EXPECT_FALSE(is_new([](LayerKind& kind) { kind.weight.density = 0.304; }));  // of one percent
  EXPECT_FALSE(is_new([](LayerKind& kind) { kind.first_weights.emplace_back("another"); }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.density = 0.31; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.zeros = "uniform"; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.zeros = "rows:0"; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.rows = 511; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.columns = 128; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.has_bias = false; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.layer.activation.kind = Activation::Kind::relu; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.dtype = DType::bf16; }));
  EXPECT_TRUE(is_new([](LayerKind& kind) { kind.weight.stored = "tca_bme"; }));
  EXPECT_TRUE(is_new([](LayerKind&) {}, "GPU 2"));
  options_.most_tokens = 512;
  EXPECT_TRUE(is_new([](LayerKind&) {}));
}

// Other numbers of requests have some of their token buckets in common.
TEST_F(ChooseByTime, MeasuresTokensThatAreNew) {
  choose(kind_, &meter_);
  options_.tokens = {1, 2};
  const FormatChoice fewer = choose(kind_, &meter_);
  EXPECT_EQ(fewer.by, By::cache);
  EXPECT_NEAR(*fewer.times[0].seconds, 2 * 3e-5, 1e-9);
  EXPECT_EQ(meter_.calls.size(), 4u);
  options_.tokens = {2, 4, 8, 16};
  EXPECT_EQ(choose(kind_, nullptr).by, By::rules);
  const FormatChoice more = choose(kind_, &meter_);
  EXPECT_EQ(more.by, By::measurement);
  EXPECT_NEAR(*more.times[0].seconds, 4 * 3e-5, 1e-9);
  EXPECT_EQ(meter_.calls.size(), 8u);
  EXPECT_EQ(meter_.seen, (std::vector<int64_t>{8, 16}));
  options_.tokens = {1, 2, 4, 8, 16};
  EXPECT_EQ(choose(kind_, nullptr).by, By::cache);
}

// Layers of one percent share times; each has the bytes of its own nonzeros.
TEST_F(ChooseByTime, BytesAreThoseOfTheLayer) {
  const LayerKind measured = kind_of(4096, 4096, 0.096);
  const LayerKind other = kind_of(4096, 4096, 0.104);
  choose(measured, &meter_);
  const FormatChoice choice = choose(other, nullptr);
  EXPECT_EQ(choice.by, By::cache);
  EXPECT_EQ(choice.bytes({"dense"}), 900);
  const auto expected = [](const LayerKind& kind) {
    return static_cast<double>(expected_bytes(kind, kind.weight, {"tiled_csl"}, kCuda));
  };
  EXPECT_EQ(choice.bytes({"tiled_csl"}),
            std::llround(500.0 * expected(other) / expected(measured)));
  EXPECT_GT(choice.bytes({"tiled_csl"}), 530);
}

// What is in the cache may be anything.
TEST_F(ChooseByTime, WhatTheCacheCannotMeanIsMeasured) {
  const testing::TempDir folder;
  const std::filesystem::path path = folder.path() / "cache.json";
  options_.tokens = {1};
  cache_ = TuneCache(path);
  choose(kind_, &meter_);
  cache_.save();
  std::string file;
  {
    std::ifstream stream(path);
    file.assign(std::istreambuf_iterator<char>(stream), {});
  }
  const int64_t expected = expected_bytes(kind_, kind_.weight, {"tca_bme"}, kCuda);
  const std::string good = fmt::format("10.000 us, 400 bytes of {} expected", expected);
  const size_t at = file.find(good);
  ASSERT_NE(at, std::string::npos) << file;
  const auto by = [&](const std::string& text) {
    std::string changed = file;
    changed.replace(at, good.size(), text);
    cache_ = TuneCache(folder.write("changed.json", changed));
    EXPECT_EQ(cache_.problem(), "");
    return choose(kind_, &meter_).by;
  };
  EXPECT_EQ(by(good), By::cache);
  EXPECT_EQ(by("10 us, 0 bytes of 1 expected"), By::cache);
  for (const char* text :
       {"", "none", "none: ", R"(none: \u001b[2J)", "10", "10 us", "10 us, 400 bytes",
        "10 us, 400 bytes of 400", "10 us, 400 bytes of 400 expected; x",
        "nan us, 400 bytes of 400 expected", "inf us, 400 bytes of 400 expected",
        "-1 us, 400 bytes of 400 expected", "0 us, 400 bytes of 400 expected",
        "10 us, -400 bytes of 400 expected", "10 us, 400 bytes of -400 expected",
        "10 us, 400 bytes of 0 expected", "10 us, 9223372036854775807 bytes of 400 expected",
        "10 us, 99999999999999999999 bytes of 400 expected"}) {
    EXPECT_EQ(by(text), By::measurement) << text;
  }
  EXPECT_EQ(by("none: " + std::string(1001, 'x')), By::measurement);
}

TEST_F(ChooseByTime, AFormatThatDoesNotTakeTheWeightIsLeftOut) {
  meter_.on_measure = [](std::string_view format) {
    require(format != "tca_bme", "too many nonzeros");
  };
  const FormatChoice first = choose(kind_, &meter_);
  EXPECT_EQ(first.in.format, "tiled_csl");
  EXPECT_EQ(first.by, By::measurement);
  EXPECT_FALSE(first.times[2].seconds.has_value());
  EXPECT_EQ(first.times[2].why_not, "too many nonzeros");
  const FormatChoice unmeasured = choose(kind_, nullptr);
  EXPECT_EQ(unmeasured.by, By::cache);
  EXPECT_EQ(unmeasured.in.format, "tiled_csl");
  EXPECT_EQ(to_string(unmeasured, FormatRules::built_in()),
            "1 layers of 512 x 256, 30.0 % nonzeros: tiled_csl, as measured before (dense 90.0 us, "
            "0.0 MiB; tiled_csl 60.0 us, 0.0 MiB; tca_bme not measured: too many nonzeros; "
            "general_sparse 120.0 us, 0.0 MiB)");
  // The reason may have been another weight's.
  EXPECT_EQ(choose(kind_, &meter_).by, By::cache);
  EXPECT_EQ(meter_.calls.back(), "tca_bme");
  meter_.on_measure = {};
  EXPECT_EQ(choose(kind_, &meter_).in.format, "tca_bme");
  EXPECT_EQ(choose(kind_, nullptr).in.format, "tca_bme");
  // The weight itself.
  meter_.on_measure = [](std::string_view) { fail("model.safetensors: cannot be read"); };
  EXPECT_TRUE(testing::throws_error([&] { choose(kind_of(64, 64, 0.2), &meter_); },
                                    "model.safetensors: cannot be read"));
  meter_.on_measure = [](std::string_view format) {
    if (format != "dense") {
      throw DeviceLost("the device is lost");
    }
  };
  EXPECT_THROW(choose(kind_of(64, 64, 0.2), &meter_), DeviceLost);
}

// The others count, also if it is dense.
TEST_F(ChooseByTime, WhatThereIsNoMemoryForIsLeftOut) {
  const auto without = [&](std::string_view name) {
    meter_.on_measure = [name](std::string_view format) {
      if (format == name) {
        throw OutOfMemory("no memory");
      }
    };
    cache_ = TuneCache();
    const FormatChoice choice = choose(kind_, &meter_);
    EXPECT_EQ(choice.by, By::measurement);
    for (const FormatTime& time : choice.times) {
      EXPECT_EQ(time.seconds.has_value(), time.in.format != name);
      EXPECT_EQ(time.why_not, time.in.format == name ? "no memory" : "");
    }
    const FormatChoice unmeasured = choose(kind_, nullptr);
    EXPECT_EQ(unmeasured.by, By::cache);
    EXPECT_EQ(unmeasured.in.format, choice.in.format);
    return choice.in.format;
  };
  EXPECT_EQ(without("dense"), "tca_bme");
  EXPECT_EQ(without("tiled_csl"), "tca_bme");
  EXPECT_EQ(without("tca_bme"), "tiled_csl");
  // It is tried again, alone.
  meter_.calls.clear();
  meter_.on_measure = {};
  EXPECT_EQ(choose(kind_, &meter_).in.format, "tca_bme");
  EXPECT_EQ(meter_.calls, std::vector<std::string>{"tca_bme"});
}

TEST_F(ChooseByTime, ForWantOfMemoryForAllRulesChoose) {
  meter_.on_measure = [](std::string_view) { throw OutOfMemory("no memory"); };
  const FormatChoice choice = choose(kind_, &meter_);
  EXPECT_EQ(meter_.calls.size(), 4u);
  EXPECT_EQ(choice.by, By::rules);
  EXPECT_EQ(choice.in.format, "tca_bme");
  EXPECT_NE(to_string(choice, FormatRules::built_in())
                .find("tca_bme, by the rules of NVIDIA H200 (dense not measured: no memory; "),
            std::string::npos);
  EXPECT_GT(choice.bytes(), 0);
  std::vector<FormatChoice> choices{choice};
  fit_into(0, choices);  // there is no time to go by
  EXPECT_EQ(choices[0].in.format, "tca_bme");
}

TEST_F(ChooseByTime, WithoutAMeterRulesChoose) {
  const FormatChoice choice = choose(kind_, nullptr);
  EXPECT_EQ(choice.by, By::rules);
  EXPECT_EQ(choice.in.format, "tca_bme");
  EXPECT_TRUE(choice.times.empty());
  EXPECT_EQ(choose(kind_of(512, 256, 0.8), nullptr).in.format, "dense");
}

TEST_F(ChooseByTime, WhatIsLargerThanDenseIsNotTried) {
  const FormatChoice choice = choose(kind_of(512, 256, 1.0), &meter_);
  EXPECT_EQ(choice.in.format, "dense");
  EXPECT_EQ(choice.by, By::no_other);
  EXPECT_EQ(choice.bytes(), 512 * 256 * 2);
  EXPECT_TRUE(meter_.calls.empty());
  EXPECT_EQ(to_string(choice, FormatRules::built_in()),
            "1 layers of 512 x 256, 100.0 % nonzeros: dense, for want of another candidate "
            "(tiled_csl not tried: it takes no fewer bytes than dense; tca_bme not tried: it takes "
            "no fewer bytes than dense; general_sparse not tried: it takes no fewer bytes than "
            "dense)");
  const FormatChoice two = choose(kind_of(4096, 4096, 0.8), &meter_);
  ASSERT_EQ(two.not_tried.size(), 2u);
  EXPECT_EQ(two.not_tried[0].format, "tiled_csl");
  EXPECT_EQ(two.not_tried[1].format, "general_sparse");
  EXPECT_EQ(meter_.calls, (std::vector<std::string>{"dense", "tca_bme"}));
}

// For fit_into(), where the fastest layout of a format takes too much: from 79 % zeros on records
// have pairs, and are smaller without.
class SmallerLayouts : public ChooseByTime {
 protected:
  void add(FormatChoice& choice, FormatMeter* meter) {
    add_smaller_layouts(choice, options_, meter, cache_, "GPU 1");
  }

  const LayerFormat small_{.format = "tca_bme", .layout = "size"};
  LayerKind kind_ = kind_of(4096, 4096, 0.2);
  FakeMeter meter_{{{"dense", {900, 3e-5}},
                    {"tiled_csl", {500, 2.5e-5}},
                    {"tca_bme", {400, 1e-5}},
                    {"tca_bme for size", {300, 2e-5}},
                    {"general_sparse", {600, 4e-5}}}};
};

TEST_F(SmallerLayouts, AreTriedOnce) {
  FormatChoice choice = choose(kind_, &meter_);
  EXPECT_EQ(choice.in, LayerFormat{"tca_bme"});
  const size_t tried = choice.times.size();
  add(choice, nullptr);
  EXPECT_EQ(choice.times.size(), tried);
  add(choice, &meter_);
  add(choice, &meter_);
  ASSERT_EQ(choice.times.size(), tried + 1);
  EXPECT_EQ(choice.times.back().in, small_);
  EXPECT_EQ(choice.times.back().bytes, 300);
  EXPECT_EQ(meter_.calls.back(), "tca_bme for size");
  EXPECT_EQ(choice.in, LayerFormat{"tca_bme"});
  FormatChoice again = choose(kind_, nullptr);
  EXPECT_EQ(again.by, By::cache);
  add(again, nullptr);
  EXPECT_EQ(again.times.back().in, small_);
  EXPECT_EQ(meter_.calls.size(), tried + 1);
}

TEST_F(SmallerLayouts, AreTakenForTheirSize) {
  std::vector<FormatChoice> choices{choose(kind_, &meter_)};
  add(choices[0], &meter_);
  fit_into(400, choices);
  EXPECT_EQ(choices[0].in, LayerFormat{"tca_bme"});
  fit_into(399, choices);
  EXPECT_EQ(choices[0].in, small_);
  EXPECT_TRUE(choices[0].for_memory);
  EXPECT_EQ(choices[0].bytes_of_all(), 300);
  EXPECT_EQ(layer_formats(choices), (LayerFormats{{"4096x4096.0.weight", small_}}));
  const std::string text = to_string(choices[0], FormatRules::built_in());
  EXPECT_NE(text.find(": tca_bme for size, by measurement, for its size (dense 90.0 us, "),
            std::string::npos)
      << text;
}

TEST_F(SmallerLayouts, OfWhatIsEncodedAlone) {
  const auto adds = [&](const LayerKind& kind) {
    FormatChoice choice = choose(kind, &meter_);
    const size_t tried = choice.times.size();
    add(choice, &meter_);
    return choice.times.size() > tried;
  };
  EXPECT_TRUE(adds(kind_));
  EXPECT_TRUE(adds(kind_of(4096, 4096, 0.2, 1, "tiled_csl")));
  EXPECT_FALSE(adds(kind_of(4096, 4096, 0.2, 1, "tca_bme")));
  EXPECT_FALSE(adds(kind_of(4096, 4096, 0.3)));   // there are no pairs
  EXPECT_FALSE(adds(kind_of(4096, 4096, 0.01)));  // pairs are smaller
}

TEST_F(SmallerLayouts, AreTheOnlyOnesWhereTheyAreRequested) {
  LayerKind kind = kind_;
  kind.weight.records = "size";
  EXPECT_EQ(kind.in("tca_bme"), small_);
  EXPECT_EQ(kind.in("dense"), LayerFormat{"dense"});
  FormatChoice choice = choose(kind, &meter_);
  EXPECT_EQ(choice.in, small_);
  EXPECT_EQ(choose_by_rules(kind, FormatRules::built_in(), options_).in, small_);
  EXPECT_EQ(std::ranges::find(meter_.calls, "tca_bme"), meter_.calls.end());
  const size_t tried = choice.times.size();
  add(choice, &meter_);
  EXPECT_EQ(choice.times.size(), tried);
  EXPECT_LT(expected_bytes(kind, kind.weight, small_, kCuda),
            expected_bytes(kind, kind.weight, {"tca_bme"}, kCuda));
  // As they are stored.
  kind.weight.stored = "tca_bme";
  EXPECT_EQ(kind.in("tca_bme"), LayerFormat{"tca_bme"});
}

// One that users name for its purpose, for weights like those of another.
class FormatForOnePurpose : public WeightFormat {
 public:
  std::string_view name() const override { return "one_purpose"; }
  int32_t version() const override { return 1; }
  bool runs_on(const Device& device) const override { return device.is_cuda(); }
  bool for_auto(const Device&) const override { return false; }
  bool holds(DType dtype) const override { return dtype == DType::f16; }
  std::string why_not(const Tensor&) const override { return {}; }
  void validate(const EncodedWeight&, ThreadPool&) const override {}
  OwnedTensor decode(const EncodedWeight&, ThreadPool&) const override { fail("no decoder"); }
  int64_t formula_bytes(const EncodedWeight&) const override { return 1; }

 private:
  EncodedWeight encode_on_host(const Tensor&, const LayoutOptions&, ThreadPool&) const override {
    fail("no encoder");
  }
  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight, ThreadPool&) const override {
    fail("no kernels");
  }
};

TEST(FormatCandidates, OneForOnePurposeIsTakenWhereItIsStored) {
  const FormatForOnePurpose format;
  EXPECT_EQ(why_no_candidate(format, kind_of(512, 256, 0.3), kCuda),
            "it is taken only where it is named");
  EXPECT_EQ(why_no_candidate(format, kind_of(512, 256, 0.3, 1, "one_purpose"), kCuda), "");
  EXPECT_EQ(why_no_candidate(format, kind_of(512, 256, 0.3, 1, "one_purpose"), {}),
            "it does not run on cpu");
  LayerKind bf16 = kind_of(512, 256, 0.3, 1, "one_purpose");
  bf16.weight.dtype = DType::bf16;
  EXPECT_EQ(why_no_candidate(format, bf16, kCuda), "it does not hold bf16");
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
  const Names all{"dense", "tiled_csl", "tca_bme", "general_sparse"};
  EXPECT_EQ(names(kind_of(4096, 4096, 0.3)), all);
  EXPECT_EQ(names(kind_of(4096, 4096, 0.3), {}), (Names{"dense", "tiled_csl", "tca_bme"}));
  EXPECT_EQ(names(kind_of(4096, 4096, 0.3, 1, "general_sparse"), {}), all);
  EXPECT_EQ(names(kind_of(4096, 4096, 0.9, 1, "tiled_csl")),
            (Names{"dense", "tiled_csl", "tca_bme"}));
  EXPECT_EQ(names(kind_of(4096, 4096, 0.9)), (Names{"dense", "tca_bme"}));
  EXPECT_EQ(names(kind_of(4096, 4096, 0.99)), Names{"dense"});
  LayerKind f32 = kind_of(4096, 4096, 0.1);
  f32.weight.dtype = DType::f32;
  EXPECT_EQ(names(f32, {}), Names{"dense"});
}

std::vector<std::string> candidates_of(const LayerKind& kind, const Device& device = kCuda) {
  std::vector<std::string> names;
  for (const WeightFormat* format : format_candidates(kind, device)) {
    names.emplace_back(format->name());
  }
  return names;
}

LayerKind rounded(LayerKind kind, std::string records) {
  kind.weight.records = std::move(records);
  for (LayerWeight& weight : kind.weights) {
    weight.records = kind.weight.records;
  }
  return kind;
}

// No other format has them, and with them there is less to read whatever the zeros.
TEST(FormatCandidates, OfNarrowValuesAreThoseThatHoldThemAndTheStoredOne) {
  using Names = std::vector<std::string>;
  for (const double density : {0.1, 0.5, 1.0}) {
    SCOPED_TRACE(density);
    const LayerKind kind = kind_of(4096, 4096, density);
    EXPECT_EQ(candidates_of(rounded(kind, "i8")), (Names{"dense", "tca_bme", "dense_i8"}));
    EXPECT_EQ(candidates_of(rounded(kind, "f8")), (Names{"dense", "tca_bme"}));
    for (const char* records : {"i4", "i4:32", "i4:64", "i4:128"}) {
      const LayerKind i4 = rounded(kind, records);
      EXPECT_EQ(candidates_of(i4), (Names{"dense", "tca_bme", "dense_i4"})) << records;
      EXPECT_EQ(i4.in("tca_bme").layout, records);
      EXPECT_EQ(i4.in("dense_i4").layout, records);
      EXPECT_EQ(why_no_candidate(weight_format("dense_i8"), i4, kCuda),
                "it is taken only where it is named");
    }
  }
  LayerKind kind = rounded(kind_of(4096, 4096, 0.3, 1, "tiled_csl"), "i4");
  EXPECT_EQ(why_no_candidate(weight_format("general_sparse"), kind, kCuda),
            "it does not hold values of i4");
  EXPECT_EQ(candidates_of(kind), (Names{"dense", "tiled_csl", "tca_bme", "dense_i4"}));
  kind.weight.dtype = DType::f32;
  EXPECT_EQ(why_no_candidate(weight_format("dense_i4"), kind, kCuda), "it does not hold f32");
  EXPECT_EQ(candidates_of(rounded(kind_of(4, 4, 1.0), "i4")), Names{"dense"});
  // What is stored with other narrow values may have these, too.
  EXPECT_EQ(candidates_of(rounded(kind_of(4096, 4096, 1.0, 1, "dense_i8"), "i4")),
            (Names{"dense", "tca_bme", "dense_i8", "dense_i4"}));
  EXPECT_EQ(candidates_of(rounded(kind_of(4096, 4096, 1.0, 1, "dense_i8"), "i8")),
            (Names{"dense", "tca_bme", "dense_i8"}));
}

// Without narrow values, on the CPU, and for weights that keep those that they are stored with.
TEST(FormatCandidates, DenseNarrowFormatsAreNoneElsewhere) {
  using Names = std::vector<std::string>;
  for (const char* records : {"", "speed", "size"}) {
    for (const char* format : {"dense_i8", "dense_i4"}) {
      EXPECT_EQ(why_no_candidate(weight_format(format), rounded(kind_of(4096, 4096, 0.3), records),
                                 kCuda),
                "it is taken only where it is named");
    }
  }
  EXPECT_EQ(candidates_of(kind_of(4096, 4096, 1.0, 1, "dense_i8")), (Names{"dense", "dense_i8"}));
  EXPECT_EQ(candidates_of(rounded(kind_of(4096, 4096, 0.9), "i8"), {}),
            (Names{"dense", "tca_bme"}));
  for (const Device& device : {Device{}, kCuda}) {
    EXPECT_EQ(why_no_candidate(weight_format("dense_i8"),
                               rounded(kind_of(4096, 4096, 0.9, 1, "tca_bme"), "i8"), device),
              "what is stored in tca_bme keeps its values");
  }
}

// A kind of which users want values of 4 bits.
class ChooseNarrowByTime : public ChooseByTime {
 protected:
  LayerKind kind_ = rounded(kind_of(4096, 4096, 0.5, 2), "i4:64");
  const LayerFormat bitmaps_{.format = "tca_bme", .layout = "i4:64"};
  const LayerFormat dense_{.format = "dense_i4", .layout = "i4:64"};
  FakeMeter meter_{{{"dense", {900, 3e-5}},
                    {"tca_bme for i4:64", {300, 2e-5}},
                    {"dense_i4 for i4:64", {400, 1e-5}}}};
};

TEST_F(ChooseNarrowByTime, TheFastestOfThoseThatHoldTheValues) {
  const FormatChoice choice = choose(kind_, &meter_);
  EXPECT_EQ(choice.in, dense_);
  EXPECT_EQ(choice.by, By::measurement);
  EXPECT_EQ(choice.bytes(), 400);
  EXPECT_EQ(meter_.calls,
            (std::vector<std::string>{"dense", "tca_bme for i4:64", "dense_i4 for i4:64"}));
  EXPECT_EQ(choose(kind_, nullptr).in, dense_);
  cache_ = TuneCache();
  FakeMeter other({{"dense", {900, 3e-5}},
                   {"tca_bme for i4:64", {300, 1e-5}},
                   {"dense_i4 for i4:64", {400, 2e-5}}});
  EXPECT_EQ(choose(kind_, &other).in, bitmaps_);
}

TEST_F(ChooseNarrowByTime, BitmapsForTheirSize) {
  std::vector<FormatChoice> choices{choose(kind_, &meter_)};
  add_smaller_layouts(choices[0], options_, &meter_, cache_, "GPU 1");
  EXPECT_EQ(choices[0].times.size(), 3u);
  fit_into(800, choices);
  EXPECT_EQ(choices[0].in, dense_);
  EXPECT_FALSE(choices[0].for_memory);
  fit_into(799, choices);
  EXPECT_EQ(choices[0].in, bitmaps_);
  EXPECT_TRUE(choices[0].for_memory);
  EXPECT_EQ(total_bytes(choices), 600);
  EXPECT_EQ(layer_formats(choices),
            (LayerFormats{{"4096x4096.0.weight", bitmaps_}, {"4096x4096.1.weight", bitmaps_}}));
}

TEST_F(ChooseNarrowByTime, SaysWhyADenseOneWasNotTried) {
  kind_.weight.stored = "tca_bme";
  FakeMeter meter({{"dense", {900, 3e-5}}, {"tca_bme", {300, 2e-5}}});
  const FormatChoice choice = choose(kind_, &meter);
  EXPECT_EQ(choice.in, LayerFormat{"tca_bme"});
  const std::string text = to_string(choice, FormatRules::built_in());
  EXPECT_NE(text.find("dense_i4 not tried: what is stored in tca_bme keeps its values"),
            std::string::npos)
      << text;
}

TEST(ChooseByRules, NarrowValuesAreInTheFormatThatGainsByThem) {
  const FormatRules& rules = FormatRules::built_in();
  const ChoiceOptions on_gpu{.device = kCuda, .tokens = {1, 2, 4, 8}};
  const LayerKind plain = kind_of(28672, 7168, 0.18);
  ASSERT_EQ(choose_by_rules(plain, rules, on_gpu).in.format, "tiled_csl");
  struct Case {
    const char* records;
    std::map<double, std::string> formats;  // by density
  };
  for (const auto& [records, formats] : {Case{"i8",
                                              {{1.0, "dense_i8"},
                                               {0.75, "dense_i8"},
                                               {0.65, "tca_bme"},
                                               {0.5, "tca_bme"},
                                               {0.2, "tca_bme"}}},
                                         Case{"f8",
                                              {{1.0, "tca_bme"},
                                               {0.75, "tca_bme"},
                                               {0.65, "tca_bme"},
                                               {0.5, "tca_bme"},
                                               {0.2, "tca_bme"}}},
                                         Case{"i4",
                                              {{1.0, "dense_i4"},
                                               {0.75, "dense_i4"},
                                               {0.65, "dense_i4"},
                                               {0.5, "dense_i4"},
                                               {0.2, "dense_i4"}}},
                                         Case{"i4:32",
                                              {{1.0, "dense_i4"},
                                               {0.75, "dense_i4"},
                                               {0.65, "dense_i4"},
                                               {0.5, "dense_i4"},
                                               {0.2, "dense_i4"}}}}) {
    for (const auto& [density, format] : formats) {
      SCOPED_TRACE(fmt::format("{} {}", records, density));
      for (const char* stored : {"", "tiled_csl"}) {
        const LayerKind kind = rounded(kind_of(28672, 7168, density, 1, stored), records);
        const FormatChoice choice = choose_by_rules(kind, rules, on_gpu);
        EXPECT_EQ(choice.in, (LayerFormat{.format = format, .layout = records}));
        EXPECT_EQ(choice.by, By::rules);
      }
      // What was rounded before stays, and what the plan says does.
      const LayerKind stored = rounded(kind_of(28672, 7168, density, 1, "dense_i8"), records);
      EXPECT_EQ(choose_by_rules(stored, rules, on_gpu).in, LayerFormat{"dense_i8"});
      LayerKind planned = rounded(kind_of(28672, 7168, density), records);
      planned.weight.planned = "dense";
      EXPECT_EQ(choose_by_rules(planned, rules, on_gpu).in, LayerFormat{"dense"});
      // By the rules of 16 bits.
      const std::string by_rules = density > 0.52 ? "dense" : "tca_bme";
      const LayerKind in_bitmaps = rounded(kind_of(28672, 7168, density, 1, "tca_bme"), records);
      EXPECT_EQ(choose_by_rules(in_bitmaps, rules, on_gpu).in, LayerFormat{by_rules});
      const ChoiceOptions on_cpu{.device = {}, .tokens = {1, 2, 4, 8}};
      EXPECT_EQ(
          choose_by_rules(rounded(kind_of(28672, 7168, density), records), rules, on_cpu).in.format,
          by_rules);
    }
  }
}

TEST(ChooseByRules, NarrowValuesThatSaveNothingOrAreNotHeldAreNotTaken) {
  const ChoiceOptions on_gpu{.device = kCuda, .tokens = {1}};
  const auto choose = [&](const LayerKind& kind) {
    return choose_by_rules(kind, FormatRules::built_in(), on_gpu).in.format;
  };
  for (const char* records : {"i8", "f8", "i4"}) {
    EXPECT_EQ(choose(rounded(kind_of(4, 4, 1.0), records)), "dense") << records;
    LayerKind f32 = rounded(kind_of(4096, 4096, 0.3), records);
    f32.weight.dtype = DType::f32;
    EXPECT_EQ(choose(f32), "dense") << records;
  }
}

// Nothing is rounded by itself, and what was rounded is not made larger by a rule.
TEST(ChooseByRules, DenseNarrowFormatsAreThoseThatAreStored) {
  const ChoiceOptions options{.device = kCuda, .tokens = {1, 2, 4, 8}};
  for (const char* format : {"dense_i8", "dense_i4"}) {
    for (const double density : {0.3, 1.0}) {
      const LayerKind plain = kind_of(4096, 4096, density);
      EXPECT_EQ(why_no_candidate(weight_format(format), plain, kCuda),
                "it is taken only where it is named");
      const LayerKind stored = kind_of(4096, 4096, density, 1, format);
      EXPECT_EQ(why_no_candidate(weight_format(format), stored, kCuda), "");
      EXPECT_EQ(choose_by_rules(stored, FormatRules::built_in(), options).in,
                (LayerFormat{.format = format, .layout = ""}));
    }
  }
}

TEST(ChooseByRules, IsTheRulesOnAGpuAndWhatIsStoredOnTheCpu) {
  const FormatRules& rules = FormatRules::built_in();
  const ChoiceOptions on_gpu{.device = kCuda, .tokens = {1, 2, 4, 8}};
  const ChoiceOptions on_cpu{.device = {}, .tokens = {1, 2, 4, 8}};
  const auto choose = [&](const LayerKind& kind, const ChoiceOptions& options) {
    const FormatChoice choice = choose_by_rules(kind, rules, options);
    EXPECT_EQ(choice.by, By::rules);
    return choice.in.format;
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

FormatChoice measured(int64_t count, std::vector<FormatTime> times, LayerFormat in) {
  return {.kind = kind_of(64, 64, 0.5, count),
          .in = std::move(in),
          .by = By::measurement,
          .times = std::move(times),
          .device = kCuda};
}

TEST(FitInto, TakesWhatSavesMostBytesForTheLeastTime) {
  const auto start = [] {
    return std::vector<FormatChoice>{
        // 30 bytes for 3 s: 10 a second; or 60 for 12 s: 5 a second
        measured(2, {{{"dense"}, 100, 1.0}, {{"tiled_csl"}, 40, 13.0}, {{"tca_bme"}, 70, 4.0}},
                 {"dense"}),
        measured(1, {{{"dense"}, 100, 1.0}, {{"tca_bme"}, 60, 9.0}}, {"dense"}),  // 5 a second
        measured(1, {{{"dense"}, 100, 9.0}, {{"tca_bme"}, 90, 1.0}}, {"tca_bme"}),
        {.kind = kind_of(8, 8, 1.0), .in = {"dense"}},  // 128 bytes by rules
    };
  };
  std::vector<FormatChoice> choices = start();
  EXPECT_EQ(total_bytes(choices), 200 + 100 + 90 + 128);
  const auto formats = [&] {
    std::string all;
    for (const FormatChoice& choice : choices) {
      all += choice.in.format + (choice.for_memory ? "! " : " ");
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
      measured(1, {{{"dense"}, 100, 1.0}, {{"tca_bme"}, 10, 1.001}}, {"dense"}),
      measured(1, {{{"dense"}, 100, 1.0}, {{"tca_bme"}, 99, 1.0}}, {"dense"})};
  fit_into(199, choices);
  EXPECT_EQ(choices[0].in.format, "dense");
  EXPECT_EQ(choices[1].in.format, "tca_bme");
}

// The layer in the middle is measured; its sizes are not those of the others.
TEST(FormatChoice, BytesOfAllAreThoseOfEachLayer) {
  LayerKind kind = kind_of(1024, 1024, 0.3, 3, "tca_bme");
  kind.weights[0] = {.density = 0.26, .stored = "tca_bme", .stored_bytes = 800'000};
  kind.weights[1] = {.density = 0.30, .stored = "tca_bme", .stored_bytes = 850'000};
  kind.weights[2] = {.density = 0.31, .stored = "tca_bme", .stored_bytes = 900'000};
  kind.weight = kind.weights[1];
  FormatChoice choice{.kind = kind, .in = {"tca_bme"}, .device = kCuda};
  EXPECT_EQ(choice.bytes(), 850'000);
  EXPECT_EQ(choice.bytes_of_all(), 800'000 + 850'000 + 900'000);
  EXPECT_EQ(choice.bytes_of_all({"dense"}), 3 * 1024 * 1024 * 2);
  choice.times = {{{"dense"}, 1024 * 1024 * 2, 2.0}, {{"tiled_csl"}, 1'000'000, 3.0}};
  choice.in.format = "tiled_csl";
  EXPECT_EQ(choice.bytes(), 1'000'000);
  EXPECT_NEAR(static_cast<double>(choice.bytes_of_all()), 1e6 * (0.26 + 0.3 + 0.31) / 0.3, 2e4);
  EXPECT_LT(choice.bytes_of_all(), 2'950'000);
  // Which decides what fits.
  std::vector<FormatChoice> choices{choice};
  choices[0].in.format = "dense";
  fit_into(3 * 1024 * 1024 * 2 - 1, choices);
  EXPECT_EQ(choices[0].in.format, "tiled_csl");
  EXPECT_EQ(total_bytes(choices), choice.bytes_of_all());
}

// Where all sparse formats are loaded into the same panels.
TEST(FormatChoice, BytesOnTheCpuAreThoseOfPanels) {
  const LayerKind kind = kind_of(512, 256, 0.3, 2);
  const auto chosen = [&](const char* format, const Device& device) {
    return FormatChoice{.kind = kind, .in = {format}, .device = device};
  };
  const WeightFormat& tca_bme = weight_format("tca_bme");
  const EncodedWeight header = weight_header(tca_bme, kind.size(), DType::f16);
  EXPECT_EQ(chosen("tca_bme", {}).bytes(), tca_bme.bytes_on_cpu(header));
  EXPECT_EQ(chosen("tiled_csl", {}).bytes(), tca_bme.bytes_on_cpu(header));
  EXPECT_EQ(chosen("tca_bme", {}).bytes_of_all(), 2 * tca_bme.bytes_on_cpu(header));
  EXPECT_EQ(chosen("tca_bme", kCuda).bytes(), tca_bme.expected_bytes(header));
  EXPECT_NE(tca_bme.bytes_on_cpu(header), tca_bme.expected_bytes(header));
  const ChoiceOptions on_cpu{.device = {}, .tokens = {1}};
  const FormatChoice by_rules = choose_by_rules(kind, FormatRules::built_in(), on_cpu);
  EXPECT_EQ(by_rules.in.format, "tca_bme");
  EXPECT_EQ(by_rules.bytes(), tca_bme.bytes_on_cpu(header));
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
    EXPECT_EQ(choice.in.format, "tiled_csl");
    EXPECT_EQ(choice.by, By::plan);
    EXPECT_GT(choice.bytes(), 0);
    EXPECT_LT(choice.bytes(), kind.dense_bytes());
    EXPECT_EQ(to_string(choice, rules),
              "2 layers of 512 x 256, 30.0 % nonzeros: tiled_csl, by the plan");
  }
  EXPECT_TRUE(meter.calls.empty());
}

TEST(LayerFormats, HaveAllLayersOfAKind) {
  const std::vector<FormatChoice> choices{measured(2, {}, {"tca_bme"}),
                                          {.kind = kind_of(8, 8, 1.0), .in = {"dense"}}};
  EXPECT_EQ(layer_formats(choices), (LayerFormats{{"64x64.0.weight", {"tca_bme"}},
                                                  {"64x64.1.weight", {"tca_bme"}},
                                                  {"8x8.0.weight", {"dense"}}}));
}

}  // namespace
}  // namespace sparsellm
