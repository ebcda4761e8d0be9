// What all sources of weights have in common, and what each does with the requested names.

#include "models/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/build_decoder.h"
#include "models/config.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "models/weights/shape_loader.h"
#include "sparse/activation/sign_words.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/resident_pages.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Bias = WeightRequest::Bias;

constexpr Device kCuda{Device::Kind::cuda,
                       0};  // only shapes are requested, so it need not be there

// The dtype of all tensors of a test checkpoint.
DType stored_dtype(const Checkpoint& checkpoint) {
  const std::vector<std::string> names = checkpoint.names();
  for (const std::string& name : names) {
    EXPECT_EQ(checkpoint.find(name)->dtype, checkpoint.find(names.front())->dtype) << name;
  }
  return checkpoint.find(names.front())->float_dtype(names.front());
}

TEST(ShapeLoader, ReportsTheMemoryOfACheckpoint) {
  for (const std::filesystem::path& directory : all_checkpoints()) {
    SCOPED_TRACE(directory.string());
    const ModelConfig config = read_model_config(directory);
    const Checkpoint checkpoint(directory);
    CheckpointLoader weights(checkpoint, {}, std::nullopt, {});
    const auto decoder = build_decoder(config, weights);
    ShapeLoader shapes({}, stored_dtype(checkpoint));
    const auto shape_decoder = build_decoder(config, shapes);
    EXPECT_GT(shapes.loaded_bytes(), 0);
    EXPECT_EQ(shapes.loaded_bytes(), weights.loaded_bytes());
    EXPECT_EQ(shape_decoder->workspace_bytes(17, 3, {}, Sums::fastest),
              decoder->workspace_bytes(17, 3, {}, Sums::fastest));
    // Enough for fewer tokens, too.
    for (int64_t tokens = 1; tokens < 70; ++tokens) {
      EXPECT_LE(decoder->workspace_bytes(tokens, 3, {}, Sums::fastest),
                decoder->workspace_bytes(tokens + 1, 3, {}, Sums::fastest));
    }
    EXPECT_EQ(shape_decoder->kv_shape().bytes_per_token(), decoder->kv_shape().bytes_per_token());
    EXPECT_EQ(shape_decoder->vocab_size(), decoder->vocab_size());

    ShapeLoader on_gpu(kCuda, DType::bf16);
    const auto gpu_decoder = build_decoder(config, on_gpu);
    EXPECT_EQ(on_gpu.loaded_bytes(), shapes.loaded_bytes() / size_of(stored_dtype(checkpoint)) * 2);
    EXPECT_EQ(gpu_decoder->kv_shape().dtype, DType::bf16);
    EXPECT_EQ(gpu_decoder->kv_shape().bytes_per_token(), decoder->kv_shape().bytes_per_token() / 2);
  }
}

TEST(ShapeLoader, AllocatesNothing) {
  ShapeLoader shapes(kCuda, DType::f16);
  const int64_t large = int64_t{1} << 20;
  const OwnedTensor matrix = shapes.matrix("m", large, large);
  EXPECT_EQ(matrix.view.raw(), nullptr);
  EXPECT_EQ(matrix.view.shape_string(), "[1048576, 1048576]");
  const Linear linear =
      shapes.linear({.parts = {{"a", large}, {"b", 3}}, .in = 8, .bias = Bias::yes});
  EXPECT_EQ(linear.weight->out(), large + 3);
  EXPECT_EQ(linear.weight->in(), 8);
  EXPECT_EQ(linear.bias.view.shape_string(), "[1048579]");
  EXPECT_EQ(shapes.loaded_bytes(), 2 * (large * large + 9 * (large + 3)));
  const float values[] = {1.0f, 2.0f};
  EXPECT_EQ(shapes.constants("c", values).view.size(0), 2);
}

// Of records for speed and for size, of random weights and of those that are converted.
TEST(ShapeLoader, KnowsWhatRecordsTake) {
  constexpr int64_t kSize = 4096;
  ThreadPool threads(1);
  const auto near = [](int64_t bytes, double an_element) {
    const double expected = an_element * kSize * kSize;
    EXPECT_NEAR(static_cast<double>(bytes), expected, 0.01 * expected);
  };
  for (const auto& [records, bytes] : {std::pair{"", 0.847}, {"speed", 0.847}, {"size", 0.589}}) {
    SCOPED_TRACE(records);
    ShapeLoader random(
        kCuda, DType::f16,
        {.random = RandomWeights{.sparsity = 0.8, .format = "tca_bme", .records = records}});
    random.linear({.parts = {{"a", kSize / 2}, {"b", kSize / 2}}, .in = kSize});
    near(random.loaded_bytes(), bytes);
    ShapeLoader converted(kCuda, DType::f16,
                          {.format = "tca_bme", .records = records, .density = 0.2});
    converted.linear({.parts = {{"a", kSize}}, .in = kSize});
    near(converted.loaded_bytes(), bytes);
    // Other formats have none.
    ShapeLoader other(kCuda, DType::f16,
                      {.format = "tiled_csl", .records = records, .density = 0.2});
    ShapeLoader same(kCuda, DType::f16, {.format = "tiled_csl", .density = 0.2});
    other.linear({.parts = {{"a", kSize}}, .in = kSize});
    same.linear({.parts = {{"a", kSize}}, .in = kSize});
    EXPECT_EQ(other.loaded_bytes(), same.loaded_bytes());
  }
  EXPECT_TRUE(throws_error(
      [] { ShapeLoader(kCuda, DType::f16, {.random = RandomWeights{.records = "small"}}); },
      "they are for speed or size"));
  EXPECT_TRUE(throws_error(
      [] {
        const Checkpoint checkpoint(tiny_checkpoints().front());
        CheckpointLoader(checkpoint, {}, std::nullopt, {}, {.format = {}, .records = "small"});
      },
      "they are for speed or size"));
}

TEST(WeightLoader, RefusesADTypeThatTheDeviceDoesNotComputeIn) {
  const Checkpoint checkpoint(tiny_checkpoints().front());
  for (DType dtype : {DType::f16, DType::bf16, DType::i32}) {
    EXPECT_TRUE(throws_error([&] { CheckpointLoader(checkpoint, {}, dtype, {}); },
                             fmt::format("not in {}", name_of(dtype))));
  }
  EXPECT_EQ(CheckpointLoader(checkpoint, {}, DType::f32, {}).activation_dtype(), DType::f32);
  for (DType dtype : {DType::f32, DType::i32}) {
    EXPECT_TRUE(throws_error([&] { CheckpointLoader(checkpoint, kCuda, dtype, {}); },
                             fmt::format("not in {}", name_of(dtype))));
    EXPECT_TRUE(throws_error([&] { ShapeLoader(kCuda, dtype); }, "cuda:0"));
    EXPECT_TRUE(throws_error([&] { RandomLoader(kCuda, {.dtype = dtype}); }, "cuda:0"));
  }
  EXPECT_EQ(ShapeLoader(kCuda, DType::f16).activation_dtype(), DType::f16);
  EXPECT_EQ(ShapeLoader({}, DType::f16).activation_dtype(), DType::f32);
}

TEST(CheckpointLoader, ComputesOnCudaInTheCheckpointsDType) {
  for (const std::filesystem::path& directory : all_checkpoints()) {
    const Checkpoint checkpoint(directory);
    const DType stored = stored_dtype(checkpoint);
    EXPECT_EQ(CheckpointLoader(checkpoint, kCuda, std::nullopt, {}).activation_dtype(),
              stored == DType::f32 ? DType::f16 : stored);
    EXPECT_EQ(CheckpointLoader(checkpoint, kCuda, DType::f16, {}).activation_dtype(), DType::f16);
  }
}

// A checkpoint whose f32 tensors "a.weight" [2, 3], "b.weight" [1, 3], "b.bias" [1], and whose f16
// tensor "h.weight" [1, 3] hold consecutive numbers.
class SmallCheckpoint : public ::testing::Test {
 protected:
  SmallCheckpoint() {
    const std::string header = R"({"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                               R"("b.weight":{"dtype":"F32","shape":[1,3],"data_offsets":[24,36]},)"
                               R"("b.bias":{"dtype":"F32","shape":[1],"data_offsets":[36,40]},)"
                               R"("h.weight":{"dtype":"F16","shape":[1,3],"data_offsets":[40,46]},)"
                               R"("i.weight":{"dtype":"I32","shape":[1],"data_offsets":[46,50]}})";
    const uint64_t length = header.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
    file += header;
    const auto append = [&](auto value) {
      file.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    for (int i = 0; i < 10; ++i) {
      append(static_cast<float>(i));
    }
    for (int i = 10; i < 13; ++i) {
      append(to_half(static_cast<float>(i)));
    }
    append(int32_t{13});
    folder_.write("model.safetensors", file);
    checkpoint_ = std::make_unique<Checkpoint>(folder_.path());
  }

  CheckpointLoader loader(LoadProgress progress = {}) {
    return CheckpointLoader(*checkpoint_, {}, std::nullopt, std::move(progress));
  }

  TempDir folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(SmallCheckpoint, HasItsValuesAfterFinish) {
  std::vector<int64_t> reports;
  CheckpointLoader weights = loader([&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 50);
    reports.push_back(done);
  });
  const OwnedTensor h = weights.matrix("model.decoder.h.weight", 1, 3);
  const OwnedTensor a = weights.matrix("model.a.weight", 2, 3);
  const OwnedTensor bias = weights.vector("b.bias", 1);
  EXPECT_EQ(weights.loaded_bytes(), 34);
  weights.finish();
  EXPECT_EQ(reports, (std::vector<int64_t>{24, 28, 34}));  // as they lie in the file
  EXPECT_EQ(a.view.dtype(), DType::f32);
  EXPECT_EQ(h.view.dtype(), DType::f16);
  EXPECT_EQ(values_of(a.view), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values_of(bias.view), std::vector<double>{9});
  EXPECT_EQ(values_of(h.view), (std::vector<double>{10, 11, 12}));
  weights.finish();  // has nothing left to do
  EXPECT_EQ(reports.size(), 3u);
}

// The weight of a linear layer, by its product with the unit vectors: [out, in].
std::vector<double> weight_of(const Linear& linear) {
  const int64_t in = linear.weight->in();
  const int64_t out = linear.weight->out();
  CpuContext ctx;
  const GuardedTensor x(DType::f32, {in, in});
  std::vector<double> unit(static_cast<size_t>(in * in));
  for (int64_t i = 0; i < in; ++i) {
    unit[static_cast<size_t>(i * in + i)] = 1.0;
  }
  set_values(x.view(), unit);
  const GuardedTensor y(DType::f32, {in, out});
  linear.weight->matmul(x.view(), y.view(), {}, ctx.exec);
  const std::vector<double> transposed = values_of(y.view());
  std::vector<double> values;
  for (int64_t row = 0; row < out; ++row) {
    for (int64_t column = 0; column < in; ++column) {
      values.push_back(transposed[static_cast<size_t>(column * out + row)]);
    }
  }
  return values;
}

TEST_F(SmallCheckpoint, DenseLayersOfNeurons) {
  using Order = WeightLoader::Order;
  std::vector<int64_t> reports;
  CheckpointLoader weights = loader([&](int64_t done, int64_t) { reports.push_back(done); });
  OwnedSignWords signs;
  const WeightLoader::DenseLinear rows =
      weights.dense_linear({.parts = {{"a", 2}, {"b", 1}}, .in = 3}, Order::rows, &signs);
  const WeightLoader::DenseLinear transposed =
      weights.dense_linear({.parts = {{"model.a", 2}, {"b", 1}}, .in = 3}, Order::transposed);
  const WeightLoader::DenseLinear one =
      weights.dense_linear({.parts = {{"b", 1}}, .in = 3, .bias = Bias::yes}, Order::transposed);
  EXPECT_EQ(weights.loaded_bytes(), 36 + 36 + 12 + 4);
  weights.finish();
  EXPECT_EQ(weights.loaded_bytes(), 36 + 36 + 12 + 4 + 2 * 2 * 4);  // a has a zero: two planes
  EXPECT_EQ(reports.back(), 24 + 12 + 24 + 12 + 12 + 4);
  EXPECT_EQ(weights.decoded().bytes, 0);
  EXPECT_EQ(values_of(rows.weight.view), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(rows.bias.view.empty());
  EXPECT_EQ(transposed.weight.view.shape_string(), "[3, 3]");
  EXPECT_EQ(values_of(transposed.weight.view), (std::vector<double>{0, 3, 6, 1, 4, 7, 2, 5, 8}));
  EXPECT_EQ(one.weight.view.shape_string(), "[3, 1]");
  EXPECT_EQ(values_of(one.bias.view), std::vector<double>{9});
  ASSERT_EQ(signs.view().rows(), 2);
  EXPECT_EQ(signs.columns, 3);
  EXPECT_EQ(signs.nonzero.view.data<uint32_t>()[0], 0b110u);
  EXPECT_EQ(signs.nonzero.view.data<uint32_t>()[1], 0b111u);

  ShapeLoader shapes({}, DType::f32);
  OwnedSignWords none;
  shapes.dense_linear({.parts = {{"a", 2}, {"b", 1}}, .in = 3}, Order::rows, &none);
  EXPECT_EQ(shapes
                .dense_linear({.parts = {{"a", 2}, {"b", 1}}, .in = 5, .bias = Bias::yes},
                              Order::transposed)
                .weight.view.shape_string(),
            "[5, 3]");
  EXPECT_EQ(shapes.loaded_bytes(), 36 + 2 * 2 * 4 + 60 + 12);
}

TEST_F(SmallCheckpoint, JoinsByRows) {
  CheckpointLoader weights = loader();
  const Linear linear = weights.linear({.parts = {{"b", 1}, {"model.a", 2}, {"b", 1}}, .in = 3});
  weights.finish();
  EXPECT_EQ(weight_of(linear), (std::vector<double>{6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const Linear biased = weights.linear({.parts = {{"b", 1}}, .in = 3, .bias = Bias::yes});
  weights.finish();
  EXPECT_EQ(values_of(biased.bias.view), std::vector<double>{9});
}

TEST_F(SmallCheckpoint, NamesWhatIsWrong) {
  CheckpointLoader weights = loader();
  const std::string folder = folder_.path().string();
  EXPECT_TRUE(throws_error([&] { weights.vector("c.weight", 3); },
                           folder + R"(: the tensor "c.weight" is missing)"));
  EXPECT_TRUE(throws_error([&] { weights.matrix("a.weight", 3, 2); },
                           R"("a.weight" has shape [2, 3], but the config asks for [3, 2])"));
  EXPECT_TRUE(throws_error([&] { weights.vector("a.weight", 6); }, "has shape [2, 3]"));
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"b", 1}, {"h", 1}}, .in = 3});
      },
      "h.weight is F16, but b.weight is F32; joined tensors need one dtype"));
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"a", 2}}, .in = 3, .bias = Bias::yes});
      },
      R"(the tensor "a.bias" is missing)"));
  EXPECT_TRUE(throws_error([&] { weights.linear({.parts = {}, .in = 3}); }, "without parts"));
  EXPECT_TRUE(throws_error([&] { weights.vector("i.weight", 1); }, "i.weight"));
}

TEST_F(SmallCheckpoint, NamesTensorsThatAreNotUsed) {
  CheckpointLoader weights = loader();
  const OwnedTensor a = weights.matrix("model.a.weight", 2, 3);
  const OwnedTensor b = weights.matrix("b.weight", 1, 3);
  const std::vector<std::string_view> ignored{"h.weight", "i.weight", ".bias"};
  EXPECT_TRUE(
      throws_error([&] { weights.require_all_used(std::span(ignored).first(2)); }, "b.bias"));
  weights.require_all_used(ignored);
}

// Layers that are converted while they are loaded, of several dtypes.
class MixedCheckpoint : public ::testing::Test {
 protected:
  MixedCheckpoint() {
    const std::vector<Half> halves{to_half(0), to_half(1), to_half(2),
                                   to_half(3), to_half(0), to_half(5)};
    const std::vector<BFloat16> brains{to_bfloat16(6), to_bfloat16(0), to_bfloat16(8)};
    const std::vector<Half> bias{to_half(9), to_half(10)};
    folder_.write("model.safetensors", write_safetensors(std::vector<TestTensor>{
                                           {"a.weight", "F16", {2, 3}, bytes_of(halves)},
                                           {"a.bias", "F16", {2}, bytes_of(bias)},
                                           {"b.weight", "BF16", {1, 3}, bytes_of(brains)},
                                           {"c.weight", "F16", {2, 3}, bytes_of(halves)},
                                           {"c.bias", "F32", {2}, std::string(8, '\0')}}));
    checkpoint_ = std::make_unique<Checkpoint>(folder_.path());
  }

  CheckpointLoader loader(LoadProgress progress = {}) {
    return CheckpointLoader(*checkpoint_, {}, std::nullopt, std::move(progress),
                            {.format = "tca_bme", .threads = 1});
  }

  TempDir folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(MixedCheckpoint, IsConverted) {
  std::vector<int64_t> reports;
  CheckpointLoader weights = loader([&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 12 + 4 + 6 + 12 + 8);
    reports.push_back(done);
  });
  const Linear a = weights.linear({.parts = {{"a", 2}}, .in = 3, .bias = Bias::yes});
  const Linear both = weights.linear({.parts = {{"c", 2}, {"a", 2}}, .in = 3});
  EXPECT_EQ(reports, (std::vector<int64_t>{12, 36}));
  weights.finish();
  EXPECT_EQ(reports, (std::vector<int64_t>{12, 36, 40}));  // with the bias
  EXPECT_EQ(a.weight->format(), "tca_bme");
  EXPECT_EQ(weight_of(a), (std::vector<double>{0, 1, 2, 3, 0, 5}));
  EXPECT_EQ(values_of(a.bias.view), (std::vector<double>{9, 10}));
  EXPECT_EQ(weight_of(both), (std::vector<double>{0, 1, 2, 3, 0, 5, 0, 1, 2, 3, 0, 5}));
}

// Weights are in memory once: pages of the file that were read are released, or never taken.
TEST(CheckpointLoader, NoPagesOfTheFileStayInMemory) {
  const TempDir folder;
  constexpr int64_t kRows = 256;
  constexpr int64_t kColumns = 256;
  const std::vector<Half> values(kRows * kColumns, to_half(0.5f));
  folder.write("model.safetensors", write_safetensors(std::vector<TestTensor>{
                                        {"a.weight", "F16", {kRows, kColumns}, bytes_of(values)}}));
  const Checkpoint checkpoint(folder.path());
  const std::span<const std::byte> stored = checkpoint.find("a.weight")->bytes;
  if (!resident_pages(stored)) {
    GTEST_SKIP() << "the system does not say which pages are in memory";
  }
  const auto read_all = [&] {
    EXPECT_EQ(std::memcmp(stored.data(), values.data(), stored.size()), 0);
    EXPECT_GT(resident_pages(stored), 8);
  };
  read_all();
  CheckpointLoader rounding(checkpoint, {}, std::nullopt, {});
  rounding.round_to(DType::bf16);
  const OwnedTensor rounded = rounding.matrix("a.weight", kRows, kColumns);
  rounding.finish();
  EXPECT_EQ(resident_pages(stored), 0);
  EXPECT_EQ(values_of(rounded.view), std::vector<double>(kRows * kColumns, 0.5));

  CheckpointLoader copying(checkpoint, {}, std::nullopt, {});
  const OwnedTensor copied = copying.matrix("a.weight", kRows, kColumns);
  copying.finish();
  EXPECT_EQ(resident_pages(stored), 0);
  EXPECT_EQ(values_of(copied.view), std::vector<double>(kRows * kColumns, 0.5));

  read_all();
  CheckpointLoader encoding(checkpoint, {}, std::nullopt, {}, {.format = "tca_bme", .threads = 1});
  const Linear encoded = encoding.linear({.parts = {{"a", kRows}}, .in = kColumns});
  encoding.finish();
  EXPECT_EQ(encoded.weight->format(), "tca_bme");
  EXPECT_EQ(resident_pages(stored), 0);
}

TEST_F(MixedCheckpoint, NamesWhatIsWrong) {
  CheckpointLoader weights = loader();
  const std::string folder = folder_.path().string();
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"a", 2}, {"b", 1}}, .in = 3});
      },
      folder + ": b.weight is BF16, but a.weight is F16; joined tensors need one dtype"));
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"a", 2}, {"c", 2}}, .in = 3, .bias = Bias::yes});
      },
      folder + ": c.bias is F32, but a.bias is F16; joined tensors need one dtype"));
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"a", 2}, {"c", 1}}, .in = 3});
      },
      folder + R"(: the tensor "c.weight" has shape [2, 3], but the config asks for [1, 3])"));
  EXPECT_TRUE(throws_error(
      [&] {
        weights.linear({.parts = {{"a", 2}}, .in = 4});
      },
      R"("a.weight" has shape [2, 3], but the config asks for [2, 4])"));
}

RandomLoader random_loader(uint64_t seed, double sparsity = 0.0, DType dtype = DType::f32) {
  return RandomLoader({}, {.dtype = dtype, .sparsity = sparsity, .seed = seed});
}

TEST(RandomLoader, ValuesDependOnSeedAndName) {
  RandomLoader first = random_loader(1);
  RandomLoader again = random_loader(1);
  RandomLoader other = random_loader(2);
  const OwnedTensor x = first.matrix("x", 20, 30);
  EXPECT_TRUE(same_bits(again.matrix("x", 20, 30).view, x.view));
  EXPECT_FALSE(same_bits(again.matrix("y", 20, 30).view, x.view));
  EXPECT_FALSE(same_bits(other.matrix("x", 20, 30).view, x.view));

  // A part of a joined weight is the same as alone.
  const std::vector<double> q = weight_of(first.linear({.parts = {{"q", 5}}, .in = 16}));
  std::vector<double> joined =
      weight_of(again.linear({.parts = {{"k", 3}, {"q", 5}, {"v", 2}}, .in = 16}));
  EXPECT_EQ(std::vector<double>(joined.begin() + 48, joined.begin() + 128), q);
}

TEST(RandomLoader, KeepsLinearLayersInScale) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    RandomLoader weights = random_loader(3, 0.0, dtype);
    const std::vector<double> values =
        weight_of(weights.linear({.parts = {{"w", 300}}, .in = 100}));
    double squares = 0.0;
    for (double value : values) {
      ASSERT_TRUE(std::isfinite(value) && value != 0.0);
      squares += value * value;
    }
    EXPECT_NEAR(std::sqrt(squares / 30'000), 0.1, 0.002);
  }
}

TEST(RandomLoader, PrunesTheWeightsOfLinearLayersAlone) {
  RandomLoader weights = random_loader(4, 0.7);
  const auto zeros = [](const std::vector<double>& values) {
    int64_t count = 0;
    for (double value : values) {
      count += value == 0.0 ? 1 : 0;
    }
    return static_cast<double>(count) / static_cast<double>(values.size());
  };
  const Linear linear =
      weights.linear({.parts = {{"q", 200}, {"k", 100}}, .in = 100, .bias = Bias::yes});
  EXPECT_NEAR(zeros(weight_of(linear)), 0.7, 0.015);
  EXPECT_EQ(zeros(values_of(linear.bias.view)), 0.0);
  EXPECT_EQ(zeros(values_of(weights.matrix("lm_head.weight", 100, 100).view)), 0.0);
  for (const char* norm : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                           "model.decoder.layers.0.self_attn_layer_norm.weight"}) {
    EXPECT_EQ(values_of(weights.vector(norm, 40).view), std::vector<double>(40, 1.0));
  }
  for (double value : values_of(weights.vector("model.decoder.final_layer_norm.bias", 40).view)) {
    EXPECT_LT(std::abs(value), 0.04);
  }
}

// Of each tensor that a layer joins by rows, as if it were alone.
TEST(RandomLoader, PutsZerosWhereThePatternSays) {
  constexpr int64_t kColumns = 100;
  const auto loader = [] {
    return RandomLoader({}, {.dtype = DType::f32,
                             .sparsity = 0.7,
                             .pattern = {.kind = ZeroPattern::Kind::outliers, .amount = 0.1},
                             .seed = 4});
  };
  RandomLoader weights = loader();
  const Linear linear =
      weights.linear({.parts = {{"q", 200}, {"k", 60}}, .in = kColumns, .bias = Bias::yes});
  const std::vector<double> joined = weight_of(linear);
  const std::vector<double> q(joined.begin(), joined.begin() + 200 * kColumns);
  const std::vector<double> k(joined.begin() + 200 * kColumns, joined.end());
  EXPECT_EQ(weight_of(loader().linear({.parts = {{"k", 60}}, .in = kColumns})), k);
  for (const std::vector<double>* part : {&q, &k}) {
    int64_t zeros = 0;
    std::vector<int64_t> of_columns(kColumns);
    for (size_t i = 0; i < part->size(); ++i) {
      zeros += (*part)[i] == 0.0 ? 1 : 0;
      of_columns[i % kColumns] += (*part)[i] == 0.0 ? 1 : 0;
    }
    EXPECT_EQ(std::count(of_columns.begin(), of_columns.end(), 0), 10);
    EXPECT_NEAR(static_cast<double>(zeros) / static_cast<double>(part->size()), 0.7, 0.03);
  }
  for (const double value : values_of(linear.bias.view)) {
    EXPECT_NE(value, 0.0);
  }
  for (const double value : values_of(weights.matrix("lm_head.weight", 100, 100).view)) {
    EXPECT_NE(value, 0.0);
  }
}

TEST(RandomLoader, RefusesAPatternThatCannotBe) {
  const RandomWeights weights{.sparsity = 0.6,
                              .pattern = {.kind = ZeroPattern::Kind::dense_blocks, .amount = 0.5}};
  EXPECT_TRUE(throws_error([&] { RandomLoader({}, weights); }, "no pattern dense-blocks:0.5: a"));
}

TEST(RandomLoader, RefusesASparsityOutOfRange) {
  for (double sparsity : {-0.1, 1.01, std::nan("")}) {
    EXPECT_TRUE(throws_error([&] { random_loader(1, sparsity); }, "sparsity"));
  }
}

TEST(RandomLoader, ActivationsStayInRangeThroughManyLayers) {
  for (const std::filesystem::path& directory : tiny_checkpoints()) {
    SCOPED_TRACE(directory.string());
    ModelConfig config = read_model_config(directory);
    config.num_layers = 96;
    RandomLoader weights = random_loader(5, 0.5, DType::f16);
    const auto decoder = build_decoder(config, weights);
    ShapeLoader shapes({}, DType::f16);
    build_decoder(config, shapes);
    EXPECT_EQ(weights.loaded_bytes(), shapes.loaded_bytes());

    const int64_t tokens = 7;
    CpuContext ctx(1, decoder->workspace_bytes(tokens, 1, {}, Sums::fastest));
    const KvCache kv({}, decoder->kv_shape(), 1);
    const PagedStep step({{.pages = {0}, .kv_length = tokens, .rows = tokens}});
    const GuardedTensor ids = i32_tensor({5, 100, 7, 7, 250, 31, 99});
    const GuardedTensor hidden(DType::f32, {tokens, decoder->hidden_size()});
    decoder->forward({.token_ids = ids.view(), .batch = step.batch()}, kv, hidden.view(), ctx.exec);
    const GuardedTensor logits(DType::f32, {1, decoder->vocab_size()});
    decoder->logits(hidden.view(), i32_tensor({6}).view(), logits.view(), ctx.exec);
    double squares = 0.0;
    for (double value : values_of(hidden.view())) {
      ASSERT_LT(std::abs(value), 1000.0);
      squares += value * value;
    }
    EXPECT_GT(squares, 0.01 * static_cast<double>(hidden.view().element_count()));
    for (double value : values_of(logits.view())) {
      ASSERT_LT(std::abs(value), 100.0);
    }
  }
}

}  // namespace
}  // namespace sparsellm
