// What holds for the weights of every format of sparse/registry.h on the device that is tested
// (tests/sparse/device_under_test.h), which come there by WeightFormat::load() and
// encode_on_device(); a new format is found.

#include "tests/sparse/conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "sparse/registry.h"
#include "tests/sparse/device_under_test.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/product_reference.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/compare.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// Epsilons of sum |w||x|: the rounding errors of one long sum of thousands of terms come to some 4.
constexpr double kTolerance = 8.0;

// Random numbers, none of them near 0.
std::vector<double> nonzero_numbers(int64_t count, Random& random) {
  std::vector<double> numbers(static_cast<size_t>(count));
  for (double& x : numbers) {
    x = random.uniform(0.25, 1.0) * (random.below(2) == 0 ? 1.0 : -1.0);
  }
  return numbers;
}

// How a product is called.
struct Call {
  int64_t tokens = 0;
  Layout x = Layout::contiguous;
  Layout y = Layout::contiguous;
  DType bias = DType::f32;
  bool has_bias = false;
  Activation::Kind activation = Activation::Kind::none;
};
std::string describe(const Call& call) {
  return fmt::format("{} tokens{}{}{}{}", call.tokens,
                     call.x == Layout::strided ? ", x strided" : "",
                     call.y == Layout::strided ? ", y strided" : "",
                     call.has_bias ? fmt::format(", {} bias", name_of(call.bias)) : "",
                     call.activation == Activation::Kind::none ? "" : ", relu");
}

OwnedTensor copy_to(Device device, const Tensor& x) {
  OwnedTensor copy = allocate_tensor(device, x.dtype(), {x.size(0), x.size(1)}, "a test");
  copy_bytes(device, copy.view.raw(), {}, x.raw(), x.bytes());
  return copy;
}

// What libraries on a GPU may add to the errors of a sum: a zero for a result that is subnormal in
// f32, and another rounding before the bias.
Expected with_errors_of_libraries(Expected product, DType y, bool has_bias) {
  const double unit = y == DType::f16 ? 0x1p-11 : 0x1p-8;
  const double least = y == DType::f16 ? 0x1p-25 : 0x1p-134;
  for (size_t i = 0; i < product.values.size(); ++i) {
    const double value = std::abs(product.values[i]);
    const double rounding = has_bias && std::isfinite(value) ? std::max(unit * value, least) : 0.0;
    product.magnitudes[i] += (rounding + double{std::numeric_limits<float>::min()}) /
                             (kTolerance * std::numeric_limits<float>::epsilon());
  }
  return product;
}

// Calls of the weights of one shape and dtype. x is the same in all, except for its number of
// tokens.
class Calls {
 public:
  Calls(const WeightShape& shape, DType weight, std::initializer_list<int64_t> tokens,
        const DeviceUnderTest& device)
      : shape_(shape), device_(device.device()), activations_(device.activations(weight)) {
    Random random(kConformanceSeed);
    const int64_t most = std::max(tokens);
    all_x_ = GuardedTensor(activations_, {most, shape.columns});
    set_values(all_x_.view(), nonzero_numbers(most * shape.columns, random));
    const std::vector<double> numbers = values_of(all_x_.view());
    int number = 0;
    for (int64_t count : tokens) {
      // Every call of a weight has other strides, bias and activation than the one before.
      ++number;
      const DType bias_on_cpu = number % 3 == 1 ? DType::f32 : DType::f16;
      const Call call{
          .tokens = count,
          .x = number % 2 == 0 ? Layout::strided : Layout::contiguous,
          .y = number % 3 == 0 ? Layout::strided : Layout::contiguous,
          .bias = device_.is_cuda() ? activations_ : bias_on_cpu,
          .has_bias = number % 3 != 2,
          .activation = number % 4 == 3 ? Activation::Kind::relu : Activation::Kind::none};
      GuardedTensor x(activations_, {count, shape.columns}, call.x, device_);
      set_values(x.view(), std::span(numbers).first(static_cast<size_t>(count * shape.columns)));
      OwnedTensor bias = allocate_tensor(device_, call.bias, {shape.rows}, "a bias");
      random.fill(bias.view);
      calls_.push_back({.call = call, .x = std::move(x), .bias = std::move(bias)});
    }
  }

  // The product with all tokens, on the host.
  Expected expected_of(const Tensor& w, ThreadPool& threads) const {
    return product(all_x_.view(), w, threads);
  }

  void check(const WeightMatrix& weight, const Expected& expected, DeviceUnderTest& device) const {
    const bool has_nan =
        std::ranges::any_of(expected.values, [](double x) { return std::isnan(x); });
    for (const Prepared& p : calls_) {
      Call call = p.call;
      if (device_.is_cuda() && has_nan) {
        call.activation = Activation::Kind::none;  // of which libraries may make a 0
      }
      SCOPED_TRACE(describe(call));
      const GuardedTensor y(activations_, {call.tokens, shape_.rows}, call.y, device_);
      const Epilogue epilogue{.bias = call.has_bias ? p.bias.view : Tensor(),
                              .activation = {call.activation, 0.0f}};
      weight.matmul(p.x.view(), y.view(), epilogue, device.exec());
      device.synchronize();
      Expected exact = first_rows(expected, call.tokens, shape_.rows);
      if (device_.is_cuda()) {
        exact = with_errors_of_libraries(std::move(exact), activations_, call.has_bias);
      }
      const std::vector<double> bias =
          call.has_bias ? values_of(p.bias.view) : std::vector<double>();
      EXPECT_TRUE(
          all_close(y.view(), with_epilogue(std::move(exact), bias, call.activation), kTolerance));
      EXPECT_TRUE(y.guards_intact());
    }
  }

 private:
  struct Prepared {
    Call call;
    GuardedTensor x;
    OwnedTensor bias;
  };

  WeightShape shape_;
  Device device_;
  DType activations_;
  std::list<Prepared> calls_;
  GuardedTensor all_x_ = GuardedTensor(DType::f32, {1, 1});
};

void expect_shape(const WeightMatrix& weight, const WeightFormat& format, const Tensor& w) {
  EXPECT_EQ(weight.format(), format.name());
  EXPECT_EQ(weight.dtype(), w.dtype());
  EXPECT_EQ(weight.out(), w.size(0));
  EXPECT_EQ(weight.in(), w.size(1));
}

// All rows are those of w, which has no -0.
void expect_expands_to(const WeightMatrix& weight, const Tensor& w, DeviceUnderTest& device) {
  const GuardedTensor dense(w.dtype(), {w.size(0), w.size(1)}, Layout::contiguous, device.device());
  weight.expand({.begin = 0, .count = w.size(0)}, dense.view(), device.exec());
  device.synchronize();
  EXPECT_TRUE(same_bits(dense.view(), w));
  EXPECT_TRUE(dense.guards_intact());
}

// The device of the program; tests are skipped where there is none.
template <class Base>
class OnDevice : public Base {
 protected:
  void SetUp() override {
    if (device_to_test().is_cuda() && cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
    device.emplace();
  }

  std::optional<DeviceUnderTest> device;
};

// -------------------------------------------------------------------------------------- products

class Products : public OnDevice<::testing::TestWithParam<ShapeCase>> {
 protected:
  // One weight in all formats.
  void check(const WeightSpec& spec, const Calls& calls) {
    const OwnedTensor w = make_weight(spec, kConformanceSeed);
    const Expected expected = calls.expected_of(w.view, device->threads());
    for (const WeightFormat* format : formats_for(w.view)) {
      if (!format->runs_on(device->device())) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{} {} [{}, {}], density {}, {}", format->name(),
                               name_of(spec.dtype), spec.rows, spec.columns, spec.density,
                               name_of(spec.pattern)));
      EncodedWeight fast = format->encode(w.view, device->threads());
      for (const auto& [options, name] : other_layouts_of(*format)) {
        EncodedWeight other = format->encode(w.view, options, device->threads());
        if (!same_encoding(other, fast)) {
          SCOPED_TRACE(name);
          const std::unique_ptr<WeightMatrix> weight = device->load(*format, std::move(other));
          expect_shape(*weight, *format, w.view);
          calls.check(*weight, expected, *device);
        }
      }
      const std::unique_ptr<WeightMatrix> weight = device->load(*format, std::move(fast));
      expect_shape(*weight, *format, w.view);
      calls.check(*weight, expected, *device);
    }
  }
};

class SmallProducts : public Products {};

TEST_P(SmallProducts, AllPatternsAndDensities) {
  const auto& [shape, dtype] = GetParam();
  const Calls calls(shape, dtype, {1, 3, 8, 17, 130}, *device);
  for (Pattern pattern : kPatterns) {
    for (double density : {0.0, 0.01, 0.1, 0.3, 0.5, 0.6, 1.0}) {
      if (kSanitized && shape.rows > 200 && density != 0.01 && density != 0.5) {
        continue;
      }
      check({.dtype = dtype,
             .rows = shape.rows,
             .columns = shape.columns,
             .density = density,
             .pattern = pattern},
            calls);
      if (HasFailure()) {
        return;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, SmallProducts, ::testing::ValuesIn(cases_of(kSmallShapes)),
                         case_name);

class LargeProducts : public Products {};

TEST_P(LargeProducts, Random) {
  const auto& [shape, dtype] = GetParam();
  const Calls calls(shape, dtype, {3, 17}, *device);
  for (double density : {0.1, 0.5}) {
    if (kSanitized && density > 0.1) {
      continue;
    }
    check({.dtype = dtype, .rows = shape.rows, .columns = shape.columns, .density = density},
          calls);
  }
}
constexpr WeightShape kLargeShapes[] = {{5504, 4096}, {4096, 5504}};
INSTANTIATE_TEST_SUITE_P(Conformance, LargeProducts, ::testing::ValuesIn(cases_of(kLargeShapes)),
                         case_name);

// ------------------------------------------------------------------------------ format by format

class EachFormat : public OnDevice<::testing::TestWithParam<std::string_view>> {  // its name
 protected:
  const WeightFormat& format() const { return weight_format(GetParam()); }
};

TEST_P(EachFormat, ExpandsAnyRows) {
  for_small_weights(format(), [&](const Tensor& w) {
    const std::unique_ptr<WeightMatrix> weight =
        device->load(format(), format().encode(w, device->threads()));
    const int64_t rows = w.size(0);
    for (const Range& range : {Range{0, rows}, Range{0, 1}, Range{rows - 1, 1}, Range{rows, 0},
                               Range{1, rows - 1}, Range{3, 11}, Range{13, 51}, Range{63, 2},
                               Range{61, 66}, Range{65, 127}, Range{128, 100}}) {
      if (range.begin + range.count > rows) {
        continue;
      }
      const GuardedTensor dense(w.dtype(), {range.count, w.size(1)}, Layout::contiguous,
                                device->device());
      weight->expand(range, dense.view(), device->exec());
      device->synchronize();
      EXPECT_TRUE(same_bits(dense.view(), w.rows(range.begin, range.count)))
          << range.count << " rows from " << range.begin;
      EXPECT_TRUE(dense.guards_intact());
    }
  });
}

TEST_P(EachFormat, RefusesToExpandWhatDoesNotFit) {
  const OwnedTensor w = conformance_weight(DType::f16, {100, 64});
  const std::unique_ptr<WeightMatrix> weight =
      device->load(format(), format().encode(w.view, device->threads()));
  const auto refuses = [&](const Range& rows, const Tensor& dense) {
    return throws_error([&] { weight->expand(rows, dense, device->exec()); }, "");
  };
  const auto tensor = [&](DType dtype, int64_t rows, int64_t columns) {
    return GuardedTensor(dtype, {rows, columns}, Layout::contiguous, device->device());
  };
  const Range rows{.begin = 30, .count = 40};
  const GuardedTensor good = tensor(DType::f16, 40, 64);
  EXPECT_NO_THROW(weight->expand(rows, good.view(), device->exec()));
  const GuardedTensor wider = tensor(DType::f16, 40, 65);
  EXPECT_TRUE(refuses(rows, wider.view().columns(0, 64)));  // strided
  EXPECT_TRUE(refuses(rows, wider.view().columns(1, 64)));
  EXPECT_TRUE(refuses(rows, wider.view()));
  EXPECT_TRUE(refuses(rows, tensor(DType::f16, 40, 63).view()));
  EXPECT_TRUE(refuses(rows, tensor(DType::f16, 39, 64).view()));
  EXPECT_TRUE(refuses(rows, tensor(DType::f16, 41, 64).view()));
  EXPECT_TRUE(refuses(rows, tensor(DType::bf16, 40, 64).view()));
  EXPECT_TRUE(refuses(rows, tensor(DType::f32, 40, 64).view()));
  device->synchronize();
  EXPECT_TRUE(wider.guards_intact());
  EXPECT_TRUE(std::ranges::all_of(values_of(wider.view()), [](double x) { return std::isnan(x); }));
}

TEST_P(EachFormat, IsEncodedOnTheDevice) {
  for (double density : {0.0, 0.01, 0.2, 0.3, 1.0}) {
    for (DType dtype : kConformanceDTypes) {
      for (const WeightShape& shape : kSmallShapes) {
        const OwnedTensor w = conformance_weight(dtype, shape, density);
        if (!format().why_not(w.view).empty()) {
          continue;
        }
        for (const auto& [options, name] : layouts_of(format())) {
          SCOPED_TRACE(fmt::format("{} {} [{}, {}], density {}, {}", format().name(),
                                   name_of(dtype), shape.rows, shape.columns, density, name));
          OwnedTensor there = copy_to(device->device(), w.view);
          const std::unique_ptr<WeightMatrix> weight =
              format().encode_on_device(there.view, options, device->context(dtype));
          there = {};  // it is not needed any more
          expect_shape(*weight, format(), w.view);
          expect_expands_to(*weight, w.view, *device);
          const std::unique_ptr<WeightMatrix> loaded =
              device->load(format(), format().encode(w.view, options, device->threads()));
          EXPECT_EQ(weight->bytes(), loaded->bytes());
          EXPECT_EQ(weight->nonzeros(), loaded->nonzeros());
        }
      }
    }
  }
}

// Rows of w from the top, with as many in each part; every other one with these options.
std::vector<EncodedWeight> encode_parts(const WeightFormat& format, const Tensor& w,
                                        const std::vector<int64_t>& row_counts,
                                        const LayoutOptions& odd, ThreadPool& threads) {
  std::vector<EncodedWeight> parts;
  int64_t row = 0;
  for (int64_t rows : row_counts) {
    const LayoutOptions options = parts.size() % 2 == 0 ? LayoutOptions() : odd;
    parts.push_back(format.encode(w.rows(row, rows), options, threads));
    row += rows;
  }
  return parts;
}

const std::vector<std::vector<int64_t>> kRowCounts{{300},           {64, 236},       {128, 64, 108},
                                                   {256, 44},       {100, 100, 100}, {1, 63, 236},
                                                   {0, 64, 0, 236}, {299, 1}};

TEST_P(EachFormat, JoinsParts) {
  for (DType dtype : kConformanceDTypes) {
    for (int64_t columns : {1, 65, 256}) {
      const Calls calls({300, columns}, dtype, {3}, *device);
      for (double density : {0.0, 0.06, 0.4, 1.0}) {
        const OwnedTensor w = conformance_weight(dtype, {300, columns}, density);
        if (!format().why_not(w.view).empty()) {
          continue;
        }
        const Expected expected = calls.expected_of(w.view, device->threads());
        for (const std::vector<int64_t>& row_counts : kRowCounts) {
          for (const auto& [odd, name] : layouts_of(format())) {
            SCOPED_TRACE(fmt::format("{} {} [300, {}], density {}, from {}, every other one {}",
                                     format().name(), name_of(dtype), columns, density,
                                     fmt::join(row_counts, " + "), name));
            std::vector<EncodedWeight> parts =
                encode_parts(format(), w.view, row_counts, odd, device->threads());
            const std::unique_ptr<WeightMatrix> weight = device->load(format(), parts);
            expect_shape(*weight, format(), w.view);
            expect_expands_to(*weight, w.view, *device);
            calls.check(*weight, expected, *device);
          }
        }
      }
    }
  }
}

// Parts whose layouts differ as their densities do.
TEST_P(EachFormat, JoinsUnlikeParts) {
  const std::vector<int64_t> row_counts{128, 64, 192, 130};
  const std::vector<double> densities{0.4, 0.05, 1.0, 0.0};
  for (DType dtype : kConformanceDTypes) {
    const OwnedTensor w = allocate_tensor({}, dtype, {514, 256}, "a test");
    int64_t row = 0;
    for (size_t i = 0; i < row_counts.size(); ++i) {
      const OwnedTensor part = conformance_weight(dtype, {row_counts[i], 256}, densities[i]);
      copy_bytes({}, w.view.rows(row, row_counts[i]).raw(), {}, part.view.raw(), part.view.bytes());
      row += row_counts[i];
    }
    if (!format().why_not(w.view).empty()) {
      continue;
    }
    std::vector<EncodedWeight> parts =
        encode_parts(format(), w.view, row_counts, {}, device->threads());
    const std::unique_ptr<WeightMatrix> weight = device->load(format(), parts);
    expect_shape(*weight, format(), w.view);
    expect_expands_to(*weight, w.view, *device);
    const Calls calls({514, 256}, dtype, {1, 8, 130}, *device);
    calls.check(*weight, calls.expected_of(w.view, device->threads()), *device);
  }
}

TEST_P(EachFormat, RefusesPartsThatDoNotFitTogether) {
  const auto encode = [&](DType dtype, const WeightShape& shape) {
    return format().encode(conformance_weight(dtype, shape).view, device->threads());
  };
  const auto refused = [&](EncodedWeight other, std::string_view message) {
    std::vector<EncodedWeight> parts;
    parts.push_back(encode(DType::f16, {64, 64}));
    parts.push_back(std::move(other));
    return throws_error([&] { device->load(format(), parts); }, message);
  };
  EXPECT_TRUE(refused(encode(DType::f16, {64, 65}), "part 0: a weight of 65 columns of f16"));
  EXPECT_TRUE(refused(encode(DType::bf16, {64, 64}), "bf16"));
  EncodedWeight renamed = encode(DType::f16, {64, 64});
  renamed.format = "another";
  EXPECT_TRUE(refused(std::move(renamed), "part 1: an encoding in the format another"));
  EXPECT_TRUE(throws_error(
      [&] { format().load(std::span<const WeightPart>(), device->context(DType::f16)); },
      "no weights"));
}

// The arrays of encodings in a mapped file, as in that of a model.
class StoredParts {
 public:
  explicit StoredParts(std::span<const EncodedWeight> parts) {
    std::string bytes;
    std::vector<size_t> begins;
    for (const EncodedWeight& part : parts) {
      views_.push_back(view_of(part));
      for (const EncodedPart& array : part.parts) {
        constexpr size_t kAlignment = 8;
        bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
        begins.push_back(bytes.size());
        bytes.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
      }
    }
    bytes.append(8, '\0');  // an empty array at the end has a place, too
    file_.emplace(folder_.write("parts", bytes));
    auto begin = begins.begin();
    for (EncodedWeight& view : views_) {
      for (EncodedPart& array : view.parts) {
        array.bytes = file_->bytes().subspan(*begin++, array.bytes.size());
      }
    }
  }

  const MappedFile& file() const { return *file_; }
  std::span<EncodedWeight> views() { return views_; }

 private:
  TempDir folder_;
  std::vector<EncodedWeight> views_;
  std::optional<MappedFile> file_;
};

TEST_P(EachFormat, LoadsPartsFromAFile) {
  for (DType dtype : kConformanceDTypes) {
    for (double density : {0.0, 0.4, 1.0}) {
      const OwnedTensor w = conformance_weight(dtype, {300, 130}, density);
      if (!format().why_not(w.view).empty()) {
        continue;
      }
      for (const std::vector<int64_t>& row_counts : kRowCounts) {
        SCOPED_TRACE(fmt::format("{} {}, density {}, from {}", format().name(), name_of(dtype),
                                 density, fmt::join(row_counts, " + ")));
        StoredParts stored(encode_parts(format(), w.view, row_counts, {}, device->threads()));
        const std::unique_ptr<WeightMatrix> weight =
            device->load(format(), stored.views(), &stored.file());
        expect_expands_to(*weight, w.view, *device);
      }
    }
  }
}

// Of some of their rows and columns, at borders of all formats and elsewhere, from a file and not.
TEST_P(EachFormat, LoadsSlicesOfParts) {
  constexpr int64_t kRows = 320;
  constexpr int64_t kColumns = 520;
  const std::vector<Slice> slices{
      {{0, 128}, {0, kColumns}}, {{128, 192}, {0, kColumns}}, {{64, 64}, {0, kColumns}},
      {{3, 17}, {0, kColumns}},  {{0, kRows}, {0, 256}},      {{0, kRows}, {256, 264}},
      {{0, kRows}, {64, 128}},   {{0, kRows}, {5, 6}},        {{128, 128}, {128, 256}},
      {{1, 2}, {3, 4}},          {{0, kRows}, {0, kColumns}}, {{0, 128}, {512, 8}}};
  const LayoutOptions last = layouts_of(format()).back().options;
  for (double density : {0.4, 0.3, 0.2}) {  // in other layouts of tca_bme
    const OwnedTensor w = conformance_weight(DType::f16, {2 * kRows, kColumns}, density);
    if (!format().why_not(w.view).empty()) {
      continue;
    }
    for (const Slice& slice : slices) {
      SCOPED_TRACE(fmt::format("{}, density {}, rows {} + {}, columns {} + {}", format().name(),
                               density, slice.rows.begin, slice.rows.count, slice.columns.begin,
                               slice.columns.count));
      OwnedTensor expected =
          allocate_tensor({}, DType::f16, {2 * slice.rows.count, slice.columns.count}, "a test");
      for (int64_t part = 0; part < 2; ++part) {
        const Tensor from = w.view.rows(part * kRows + slice.rows.begin, slice.rows.count)
                                .columns(slice.columns.begin, slice.columns.count);
        set_values(expected.view.rows(part * slice.rows.count, slice.rows.count), values_of(from));
      }
      for (const auto& [of_file, options] : {std::pair{false, LayoutOptions()},
                                             {true, LayoutOptions()},
                                             {false, last},
                                             {true, last}}) {
        std::vector<EncodedWeight> parts;
        for (const int64_t first : {int64_t{0}, kRows}) {
          parts.push_back(format().encode(w.view.rows(first, kRows), options, device->threads()));
        }
        StoredParts stored(parts);
        const std::unique_ptr<WeightMatrix> weight = device->load_slices(
            format(), stored.views(), slice, of_file ? &stored.file() : nullptr);
        EXPECT_EQ(weight->out(), 2 * slice.rows.count);
        EXPECT_EQ(weight->in(), slice.columns.count);
        expect_expands_to(*weight, expected.view, *device);
      }
    }
    StoredParts stored(encode_parts(format(), w.view, {kRows, kRows}, {}, device->threads()));
    for (const Slice& outside : {Slice{{0, kRows + 1}, {0, 1}}, Slice{{0, 1}, {kColumns, 1}},
                                 Slice{{-1, 1}, {0, 1}}, Slice{{0, 1}, {1, INT64_MAX}}}) {
      EXPECT_TRUE(throws_error(
          [&] { device->load_slices(format(), stored.views(), outside, &stored.file()); },
          "part 0: "));
      EXPECT_EQ(device->held(), 0);
    }
  }
}

TEST_P(EachFormat, NamesThePartFromAFileThatIsDamaged) {
  const OwnedTensor w = conformance_weight(DType::f16, {192, 130});
  for (size_t bad : {size_t{0}, size_t{1}, size_t{2}}) {
    SCOPED_TRACE(bad);
    StoredParts stored(encode_parts(format(), w.view, {64, 64, 64}, {}, device->threads()));
    const std::string name = fmt::format("part {}: ", bad);
    const auto expect_refused = [&] {
      EXPECT_TRUE(
          throws_error([&] { device->load(format(), stored.views(), &stored.file()); }, name));
      EXPECT_EQ(device->held(), 0);
    };
    EncodedWeight& part = stored.views()[bad];
    const EncodedWeight good = view_of(part);
    part.rows += 1000;
    expect_refused();
    part = view_of(good);
    part.version = 77;
    expect_refused();
    part = view_of(good);
    part.parts.pop_back();
    expect_refused();
    part = view_of(good);
    part.nonzeros = -1;
    expect_refused();
  }
}

std::vector<std::string_view> names_of_formats_that_run() {
  std::vector<std::string_view> names;
  for (const WeightFormat* format : exact_formats()) {
    if (format->runs_on(device_to_test())) {
      names.push_back(format->name());
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Conformance, EachFormat, ::testing::ValuesIn(names_of_formats_that_run()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sparsellm
