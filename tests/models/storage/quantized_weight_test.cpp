#include "models/storage/quantized_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "tests/models/expect_error.h"
#include "tests/models/storage/write_quantized.h"
#include "tests/testing/resident_pages.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using testing::bytes_of;
using testing::error_of;
using testing::expect_message;
using testing::quantized_tensors;
using testing::QuantizedStorage;
using testing::random_codes;
using testing::TempDir;
using testing::TestTensor;
using testing::write_safetensors;
using Codes = QuantizedStorage::Codes;
using Scales = QuantizedStorage::Scales;
using Tensors = std::vector<TestTensor>;

QuantizedMatrix read(const Tensors& tensors, const std::string& name = "m.weight",
                     size_t spaces = 0) {
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(tensors, {}, spaces));
  const Checkpoint checkpoint(dir.path());
  const auto weight = QuantizedWeight::find(checkpoint, name);
  EXPECT_TRUE(weight.has_value());
  std::vector<std::string> names = weight->tensor_names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, checkpoint.names());
  EXPECT_EQ(weight->bytes(), checkpoint.bytes());
  ThreadPool threads(2);
  QuantizedMatrix q = weight->matrix(threads);
  EXPECT_EQ(weight->rows(), q.rows);
  EXPECT_EQ(weight->columns(), q.columns);
  EXPECT_EQ(weight->type(), q.type);
  EXPECT_EQ(weight->group(), q.group);
  return q;
}

void expect_same(const QuantizedMatrix& got, const QuantizedMatrix& expected) {
  EXPECT_EQ(got.type, expected.type);
  EXPECT_EQ(got.rows, expected.rows);
  EXPECT_EQ(got.columns, expected.columns);
  EXPECT_EQ(got.group, expected.group);
  EXPECT_EQ(got.codes, expected.codes);
  EXPECT_EQ(got.scales, expected.scales);
}

// By hand: codes -8, 7, 0, 1 and -1 are the nibbles 0, 15, 8, 9 and 7, from the lowest on.
TEST(QuantizedWeight, ReadsThePackingOfTheLibrary) {
  const Tensors tensors{
      {"m.weight_packed",
       "I32",
       {2, 2},
       bytes_of(std::vector<uint32_t>{0x888798f0u, 0x00000008u, 0x01234567u, 0x00000008u})},
      {"m.weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{2, 9})},
      {"m.weight_scale", "BF16", {2, 1}, bytes_of(std::vector<uint16_t>{0x3f80, 0x3f00})}};
  const QuantizedMatrix q = read(tensors, "model.decoder.m.weight");
  EXPECT_EQ(q.type, ValueType::i4);
  EXPECT_EQ(q.group, 128);
  EXPECT_EQ(q.scales, (std::vector<float>{1.0f, 0.5f}));
  EXPECT_EQ(q.codes, (std::vector<int8_t>{-8, 7, 0, 1, -1, 0, 0, 0, 0,  //
                                          -1, -2, -3, -4, -5, -6, -7, -8, 0}));
}

TEST(QuantizedWeight, ReadsTheCodesOfTheLibrary) {
  const std::string codes = bytes_of(std::vector<uint8_t>{0x38, 0x80, 0x7e, 0xff, 0x01, 0x00});
  const std::string scale = bytes_of(std::vector<float>{0.25f});
  const QuantizedMatrix i8 =
      read({{"m.weight", "I8", {2, 3}, codes}, {"m.weight_scale", "F32", {1}, scale}});
  EXPECT_EQ(i8.type, ValueType::i8);
  EXPECT_EQ(i8.codes, (std::vector<int8_t>{56, -128, 126, -1, 1, 0}));
  EXPECT_EQ(i8.scales, (std::vector<float>{0.25f, 0.25f}));
  std::string numbers = codes;
  numbers[3] = '\x7d';
  const QuantizedMatrix f8 =
      read({{"m.weight", "F8_E4M3", {2, 3}, numbers}, {"m.weight_scale", "F32", {}, scale}});
  EXPECT_EQ(f8.type, ValueType::f8);
  EXPECT_EQ(value_of(f8.type, f8.codes[0]), 1.0f);
  EXPECT_EQ(value_of(f8.type, f8.codes[2]), 448.0f);
}

TEST(QuantizedWeight, ReadsAllSizesAndStorages) {
  for (const ValueType type : {ValueType::i8, ValueType::f8}) {
    for (const int64_t columns : {1, 7, 8, 9, 130}) {
      for (const double density : {0.0, 0.3, 1.0}) {
        const QuantizedMatrix q = random_codes(type, 17, columns, 0, density, 3);
        for (const Codes codes : {Codes::plain, Codes::bitmask}) {
          for (const char* dtype : {"F32", "F16", "BF16"}) {
            SCOPED_TRACE(fmt::format("{}, {} columns, density {}, {} {}", name_of(type), columns,
                                     density, static_cast<int>(codes), dtype));
            const QuantizedStorage storage{
                .codes = codes, .scales = Scales::rows, .scale_dtype = dtype};
            expect_same(read(quantized_tensors("m", q, storage), "m.weight", 3), q);
          }
        }
      }
    }
  }
  for (const auto& [columns, group] : {std::pair{64, 32}, {192, 64}, {384, 128}, {256, 128}}) {
    SCOPED_TRACE(columns);
    const QuantizedMatrix q = random_codes(ValueType::i4, 9, columns, group, 0.7, 4);
    expect_same(read(quantized_tensors("m", q, {.scale_dtype = "BF16"})), q);
    expect_same(read(quantized_tensors("m", q, {.scale_dtype = "F16"}), "m.weight", 1), q);
  }
}

TEST(QuantizedWeight, ReadsTwoOfFour) {
  QuantizedMatrix q = random_codes(ValueType::f8, 5, 24, 0, 1.0, 5);
  for (size_t i = 0; i < q.codes.size(); ++i) {
    if ((i / 4 + i) % 4 >= 2 || i % 11 == 0) {  // some fours have but one
      q.codes[i] = 0;
    }
  }
  const Tensors tensors = quantized_tensors("m", q, {.codes = Codes::bitmask_24});
  EXPECT_EQ(tensors.front().shape, (std::vector<int64_t>{5, 12}));
  expect_same(read(tensors), q);
}

// One scale for a row of 4-bit codes is that of all its groups.
TEST(QuantizedWeight, RepeatsScalesOfRows) {
  QuantizedMatrix q = random_codes(ValueType::i4, 3, 300, 128, 1.0, 6);
  Tensors tensors = quantized_tensors("m", q);
  const std::vector<float> scales{0.5f, 2.0f, 0.125f};
  tensors.back() = {"m.weight_scale", "F16", {3, 1}, testing::scale_bytes(scales, "F16")};
  q.scales = {0.5f, 0.5f, 0.5f, 2.0f, 2.0f, 2.0f, 0.125f, 0.125f, 0.125f};
  expect_same(read(tensors), q);
}

TEST(QuantizedWeight, IsNothingElse) {
  const TempDir dir;
  const Tensors tensors{{"a.weight", "F16", {1, 1}, "ab"}, {"b.weight_shape", "I64", {0}, ""}};
  dir.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(dir.path());
  for (const char* name : {"a.weight", "b.weight", "c.weight"}) {
    EXPECT_FALSE(QuantizedWeight::find(checkpoint, name).has_value()) << name;
  }
}

TEST(QuantizedWeight, EstimatesTheDensity) {
  for (const ValueType type : {ValueType::i8, ValueType::f8, ValueType::i4}) {
    const QuantizedMatrix q = random_codes(type, 700, 64, 64, 0.4, 7);
    const double nonzeros =
        static_cast<double>(q.codes.size()) -
        static_cast<double>(std::count(q.codes.begin(), q.codes.end(), int8_t{0}));
    const TempDir dir;
    dir.write("model.safetensors", write_safetensors(quantized_tensors("m", q)));
    const Checkpoint checkpoint(dir.path());
    EXPECT_NEAR(QuantizedWeight::find(checkpoint, "m.weight")->density(),
                nonzeros / static_cast<double>(q.codes.size()), 0.02);
  }
}

TEST(QuantizedWeight, NoPagesOfTheFileStayInMemory) {
  const QuantizedMatrix q = random_codes(ValueType::i8, 1024, 256, 0, 0.5, 8);
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(quantized_tensors("m", q)));
  const Checkpoint checkpoint(dir.path());
  const auto& codes = checkpoint.find("m.weight")->bytes;
  if (!testing::resident_pages(codes)) {
    GTEST_SKIP() << "the system does not say which pages are in memory";
  }
  ThreadPool threads(1);
  expect_same(QuantizedWeight::find(checkpoint, "m.weight")->matrix(threads), q);
  EXPECT_EQ(testing::resident_pages(codes), 0);
}

std::string error_after(Tensors tensors, const std::function<void(Tensors&)>& change) {
  change(tensors);
  const TempDir dir;
  dir.write("model.safetensors", write_safetensors(tensors));
  const Checkpoint checkpoint(dir.path());
  const std::string error = error_of([&] {
    if (const auto weight = QuantizedWeight::find(checkpoint, "m.weight")) {
      ThreadPool threads(1);
      weight->matrix(threads);
    }
  });
  expect_message(error, dir.path().string());
  return error;
}

struct Refusal {
  std::function<void(Tensors&)> change;
  const char* fragment;
};

void expect_refused(const Tensors& tensors, const std::vector<Refusal>& cases) {
  for (const Refusal& c : cases) {
    SCOPED_TRACE(c.fragment);
    expect_message(error_after(tensors, c.change), c.fragment);
  }
}

void add(Tensors& t, const char* name, const char* dtype) { t.push_back({name, dtype, {0}, ""}); }

TEST(QuantizedWeight, RefusesWhatIsNotSupported) {
  const QuantizedMatrix q = random_codes(ValueType::i4, 2, 64, 32, 1.0, 9);
  expect_refused(quantized_tensors("m", q),
                 {{[](Tensors& t) { add(t, "m.weight_zero_point", "I32"); },
                   R"("m.weight_zero_point" is there: zero points)"},
                  {[](Tensors& t) { add(t, "m.weight_g_idx", "I32"); },
                   R"("m.weight_g_idx" is there: groups)"},
                  {[](Tensors& t) { add(t, "m.weight_global_scale", "F32"); }, "nvfp4"},
                  {[](Tensors& t) { add(t, "m.weight_scale_inv", "F32"); }, "scales of blocks"},
                  {[](Tensors& t) { add(t, "m.scale_packed", "F16"); }, "marlin-24"},
                  {[](Tensors& t) { add(t, "m.weight", "F16"); }, "is stored twice"},
                  {[](Tensors& t) { t[0].dtype = "U32"; }, "is U32 [2, 8], but of 4 bits"}});
}

TEST(QuantizedWeight, RefusesDamagedPacking) {
  const QuantizedMatrix q = random_codes(ValueType::i4, 2, 96, 32, 1.0, 10);
  const auto shape = [](int64_t rows, int64_t columns) {
    return [=](Tensors& t) { t[1].bytes = bytes_of(std::vector<int64_t>{rows, columns}); };
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  expect_refused(
      quantized_tensors("m", q, {.scale_dtype = "F32"}),
      {{[](Tensors& t) { t.erase(t.begin()); }, R"("m.weight" is missing)"},
       {[](Tensors& t) { t.erase(t.begin() + 1); }, R"("m.weight_shape" is missing)"},
       {[](Tensors& t) { t.erase(t.begin() + 2); }, R"("m.weight_scale" is missing)"},
       {[](Tensors& t) { t[1].dtype = "U64"; }, "is U64 [2], but expected is I64 [2]"},
       {[](Tensors& t) {
          t[1].shape = {1, 2};
        },
        "is I64 [1, 2]"},
       {shape(0, 96), "says 0 x 96"},
       {shape(2, -96), "says 2 x -96"},
       {shape(kMost, kMost), "expected positive numbers"},
       {shape(2, 97), "expected is I32 [2, 13]"},
       {shape(2, 88), "expected is I32 [2, 11]"},
       {shape(3, 96), "expected is I32 [3, 12]"},
       {shape(2, 90), "of 2 x 90 with 4 bits expected are groups"},  // 3 groups of 30
       {[](Tensors& t) {
          t[2].shape = {3, 2};
        },
        "has shape [3, 2]; of 2 x 96"},
       {[](Tensors& t) { t[2].shape = {6}; }, "has shape [6]"},
       {[](Tensors& t) {
          t[2].shape = {2, 2};  // 48
          t[2].bytes.resize(16);
        },
        "groups of 32, 64 or 128 columns"},
       {[](Tensors& t) {
          t[2].shape = {1};
          t[2].bytes.resize(4);
        },
        "has shape [1]"},
       {[](Tensors& t) {
          t[2].shape = {2, 0};
          t[2].bytes.clear();
        },
        "has shape [2, 0]"},
       {[](Tensors& t) { t[2].dtype = "I32"; }, "has the dtype I32"},
       {[](Tensors& t) {
          const std::vector<float> scales{1, 1, 1, 1, 0x1.002p0f, 1};
          t[2].bytes = bytes_of(scales);
        },
        R"("m.weight_packed": the scale of row 1, group 1 is 1.0004883, which is not a number of f16)"},
       {[](Tensors& t) {
          const std::vector<float> scales{1, 1, 1, 1, 1, 65536};
          t[2].bytes = bytes_of(scales);
        },
        "the scale of row 1, group 2 is"}});
}

TEST(QuantizedWeight, RefusesValuesAfterTheLastColumn) {
  const QuantizedMatrix q = random_codes(ValueType::i4, 2, 9, 128, 1.0, 11);
  const auto set = [](char byte) {
    return [=](Tensors& t) { t[0].bytes[12] = static_cast<char>((t[0].bytes[12] & 15) | byte); };
  };
  expect_refused(quantized_tensors("m", q),
                 {{set('\x10'), "has a value after the last column in row 1"},
                  {set('\x70'), "has a value after the last column in row 1"}});
  Tensors eight = quantized_tensors("m", q);  // as some pad
  set('\x80')(eight);
  expect_same(read(eight), q);
}

TEST(QuantizedWeight, RefusesDamagedCodes) {
  const QuantizedMatrix q = random_codes(ValueType::f8, 4, 12, 0, 1.0, 12);
  const auto scale = [](float value) {
    return [=](Tensors& t) {
      t.back().bytes = bytes_of(std::vector<float>{1.0f, 2.0f, value, 1.0f});
    };
  };
  expect_refused(
      quantized_tensors("m", q),
      {{[](Tensors& t) { t[0].bytes[25] = '\x7f'; },
        R"(the weight "m.weight": the code in row 2, column 1 is 127, which is no number of f8)"},
       {[](Tensors& t) { t[0].bytes[26] = '\xff'; }, "the code in row 2, column 2 is -1"},
       {scale(0.0f), "the scale of row 2, group 0 is 0; expected a finite positive number"},
       {scale(-1.0f), "the scale of row 2, group 0 is -1"},
       {scale(std::numeric_limits<float>::infinity()), "the scale of row 2, group 0 is inf"},
       {scale(std::nanf("")), "the scale of row 2, group 0 is nan"},
       {[](Tensors& t) { t.pop_back(); }, R"("m.weight_scale" is missing)"},
       {[](Tensors& t) { t.erase(t.begin()); }, R"("m.weight" is missing)"},
       {[](Tensors& t) { t[0].dtype = "F8_E5M2"; }, "its values are F8_E5M2; quantised ones are"},
       {[](Tensors& t) {
          t[0].dtype = "BF16";
          t[0].shape = {4, 6};
        },
        "has scales, but its values are BF16"},
       {[](Tensors& t) { t[0].shape = {48}; }, "has shape [48]; expected two positive sizes"},
       {[](Tensors& t) {
          t[0].shape = {3, 4, 4};
        },
        "has shape [3, 4, 4]"},
       {[](Tensors& t) {
          t[0].shape = {0, 12};
          t[0].bytes.clear();
        },
        "has shape [0, 12]"},
       {[](Tensors& t) {
          t[0].shape = {2, 24};
        },
        "of f8 expected is one scale, or one for each of 2"},
       {[](Tensors& t) {
          t.back().shape = {2, 2};
        },
        "has shape [2, 2]; of f8 expected"},
       {[](Tensors& t) {
          t.back().shape = {1, 4};
        },
        "has shape [1, 4]"},
       {[](Tensors& t) {
          t.back().dtype = "F8_E8M0";
          t.back().bytes.resize(4);
        },
        "has the dtype F8_E8M0"}});
}

TEST(QuantizedWeight, RefusesDamagedBitmasks) {
  const QuantizedMatrix q = random_codes(ValueType::i8, 4, 12, 0, 0.5, 13);
  expect_refused(quantized_tensors("m", q, {.codes = Codes::bitmask}),
                 {{[](Tensors& t) { t[1].bytes[7] = '\x10'; }, "after the last column in row 3"},
                  {[](Tensors& t) { t[1].bytes[0] = static_cast<char>(t[1].bytes[0] ^ 1); },
                   "in row 1, but the rows above have"},
                  {[](Tensors& t) {
                     t[0].bytes.push_back('\1');
                     ++t[0].shape[0];
                   },
                   "values, but the bitmask"},
                  {[](Tensors& t) { t.erase(t.begin()); }, R"("m.weight.compressed" is missing)"},
                  {[](Tensors& t) { t.erase(t.begin() + 1); }, R"("m.weight.bitmask" is missing)"},
                  {[](Tensors& t) { t[0].dtype = "F8_E5M2"; }, "has the dtype F8_E5M2"},
                  {[](Tensors& t) { t.pop_back(); }, R"("m.weight_scale" is missing)"},
                  {[](Tensors& t) { add(t, "m.weight", "I8"); }, "is stored twice"},
                  {[](Tensors& t) { add(t, "m.weight_packed", "I32"); }, "is stored twice"}});
}

}  // namespace
}  // namespace sparsellm
