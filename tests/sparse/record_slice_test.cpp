// Slices of encodings that are made of records, whose copies go to a device or are read from a
// file, against slices in memory.

#include "sparse/record_slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/record_upload.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kRows = 420;
constexpr int64_t kColumns = 650;
constexpr Slice kSlices[] = {
    {{0, kRows}, {0, kColumns}}, {{128, 128}, {0, kColumns}}, {{256, 164}, {0, kColumns}},
    {{0, kRows}, {0, 128}},      {{0, kRows}, {128, 256}},    {{0, kRows}, {512, 138}},
    {{128, 256}, {384, 266}},    {{128, 0}, {0, kColumns}},   {{0, kRows}, {128, 0}}};

template <class Checker>
void check_slices(const std::string& name, double density, const LayoutOptions& options = {}) {
  const WeightFormat& format = weight_format(name);
  ThreadPool threads(2);
  const OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = kRows, .columns = kColumns, .density = density}, 3);
  const EncodedWeight e = format.encode(w.view, options, threads);
  for (const Slice& slice : kSlices) {
    SCOPED_TRACE(fmt::format("{} {}: rows {} + {}, columns {} + {}", name, density,
                             slice.rows.begin, slice.rows.count, slice.columns.begin,
                             slice.columns.count));
    ASSERT_TRUE(format.at_borders(e, slice));
    EncodedWeight view = view_of(e);
    const WeightPart part{.weight = &view, .slice = slice};
    const EncodedWeight got = format.read_slice(part, threads);
    format.validate(got, threads);
    EXPECT_EQ(got.rows, slice.rows.count);
    EXPECT_EQ(got.columns, slice.columns.count);
    if (slice.rows.count > 0 && slice.columns.count > 0) {
      const EncodedWeight rows = *format.slice(e, Axis::rows, slice.rows);
      EXPECT_TRUE(same_encoding(got, *format.slice(rows, Axis::columns, slice.columns)));
    }
    const EncodedSize size = format.expected_size(e, slice);
    EXPECT_TRUE(size.exact);
    EXPECT_EQ(size.bytes, got.bytes());

    const std::span<const std::byte> expected = got.part("records").bytes;
    for (const int64_t most : {1, 5000, 1 << 21}) {
      const auto records = std::make_shared<RecordUpload<Checker>>(part);
      EXPECT_TRUE(std::ranges::equal(records->starts(), got.part("starts").values<uint32_t>()));
      std::vector<std::byte> device(static_cast<size_t>(records->bytes()), std::byte{0xa5});
      std::vector<Upload> copies;
      add_copies(records, most, device.data(), copies);
      for (const Upload& copy : copies) {
        copy.check(copy.source);
        std::ranges::copy(copy.source, static_cast<std::byte*>(copy.destination));
      }
      EXPECT_TRUE(std::ranges::equal(device, expected));
      EXPECT_EQ(records->nonzeros(), got.nonzeros);
    }
  }
  for (const Slice& cut : {Slice{{0, 100}, {0, kColumns}}, Slice{{0, kRows}, {10, 128}},
                           Slice{{32, 64}, {0, kColumns}}, Slice{{0, kRows}, {128, 100}}}) {
    EXPECT_FALSE(format.at_borders(e, cut));
    EXPECT_FALSE(format.expected_size(e, cut).exact);
  }
}

TEST(RecordSlice, IsMadeOfItsRecords) {
  for (const double density : {0.4, 0.3, 0.2}) {  // each layout of tca_bme
    check_slices<tca_bme::RecordChecker>("tca_bme", density);
    check_slices<tiled_csl::RecordChecker>("tiled_csl", density);
  }
  for (const double density : {0.2, 0.1, 0.01, 0.0}) {
    check_slices<tca_bme::RecordChecker>("tca_bme", density, {.layout = "size"});
  }
}

// A slice keeps the layout of its source, whatever its own density would call for.
TEST(RecordSlice, KeepsTheLayout) {
  ThreadPool threads(1);
  const WeightFormat& format = weight_format("tca_bme");
  OwnedTensor w =
      make_weight({.dtype = DType::f16, .rows = 256, .columns = 512, .density = 0.5}, 3);
  std::fill_n(w.view.data<Half>(), 128 * 512, Half{});
  EncodedWeight e = format.encode(w.view, threads);
  const tca_bme::RecordLayout layout = tca_bme::read_record_layout(e);
  const Slice upper{.rows = {.begin = 128, .count = 128}, .columns = {.begin = 0, .count = 512}};
  const EncodedWeight got = format.read_slice({.weight = &e, .slice = upper}, threads);
  EXPECT_EQ(tca_bme::read_record_layout(got), layout);
  EXPECT_NE(tca_bme::read_record_layout(format.encode(w.view.rows(128, 128), threads)), layout);
}

}  // namespace
}  // namespace sparsellm
