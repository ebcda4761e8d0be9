#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/tiled_csl/encoding.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/walker.h"

namespace sparsellm {
namespace {

using namespace tiled_csl;

constexpr int64_t kMaxTiles = (int64_t{1} << 32) / kTileElements - 1;  // whose words always count

// The tiles that make up a range of a matrix; none if it cuts through a tile.
std::optional<Range> tiles_of(Range range, int64_t size, int64_t tile) {
  const bool inside = range.begin >= 0 && range.count >= 0 && range.begin <= size - range.count;
  const int64_t end = range.begin + (inside ? range.count : 0);
  if (!inside || range.begin % tile != 0 || (end % tile != 0 && end != size)) {
    return std::nullopt;
  }
  return Range{.begin = range.begin / tile, .count = ceil_div(range.count, tile)};
}

// Appends runs of tiles to new parts.
class Appender {
 public:
  Appender(int64_t tiles, int64_t words)
      : offsets_(new_part<uint32_t>(std::string(kTileOffsets), DType::u32, tiles + 1)),
        words_(new_part<uint32_t>(std::string(kWords), DType::u32, words)) {
    offsets_.values[0] = 0;
  }

  void append(const EncodedTiles& from, Range tiles) {
    const std::span<const uint32_t> words = from.words(tiles.begin, tiles.count);
    std::copy(words.begin(), words.end(), words_.values.begin() + offsets_.values[tile_]);
    for (int64_t tile = tiles.begin; tile < tiles.begin + tiles.count; ++tile, ++tile_) {
      offsets_.values[tile_ + 1] =
          offsets_.values[tile_] + static_cast<uint32_t>(from.words(tile, 1).size());
    }
  }

  void move_to(EncodedWeight& e) {
    e.parts.push_back(std::move(offsets_.part));
    e.parts.push_back(std::move(words_.part));
  }

 private:
  NewPart<uint32_t> offsets_;
  NewPart<uint32_t> words_;
  size_t tile_ = 0;  // that comes next
};

class TiledCslFormat : public WeightFormat {
 public:
  std::string_view name() const override { return "tiled_csl"; }
  int32_t version() const override { return 1; }

  bool runs_on(const Device& device) const override { return !device.is_cuda(); }

  bool holds(DType dtype) const override { return dtype == DType::f16 || dtype == DType::bf16; }

  std::string why_not(const Tensor& w) const override {
    if (w.rank() != 2) {
      return fmt::format("it has {} dimensions, not 2", w.rank());
    }
    if (!holds(w.dtype())) {
      return fmt::format("its values are {}, not f16 or bf16", name_of(w.dtype()));
    }
    const bool small = tile_grid(w.size(0), w.size(1)).count() <= kMaxTiles;
    return small ? std::string() : why_too_many(count_words(w));
  }

  EncodedWeight encode(const Tensor& w, LayoutFor, ThreadPool& threads) const override {
    const std::string reason = why_not(w);
    require(reason.empty(), "a weight cannot be encoded as {}: {}", name(), reason);
    EncodedWeight e = header_of(w.dtype(), w.size(0), w.size(1));
    encode_parts(w, e, threads);
    return e;
  }

  void validate(const EncodedWeight& e, ThreadPool&) const override {
    require_header(e, *this);
    require(e.version == version(), "version {} of the format {} is not known", e.version, name());
    require(holds(e.dtype), "a weight in the format {} of {} values", name(), name_of(e.dtype));
    validate_parts(e);
  }

  OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) const override {
    return decode_walk<Walker>(e, threads);
  }

  int64_t formula_bytes(const EncodedWeight& e) const override {
    return 4 * (tile_grid(e.rows, e.columns).count() + 1) + 4 * e.nonzeros;
  }

  // In whole tiles, or up to the end of the matrix.
  std::optional<EncodedWeight> slice(const EncodedWeight& e, Axis axis,
                                     Range range) const override {
    const Range all_rows{.begin = 0, .count = e.rows};
    const Range all_columns{.begin = 0, .count = e.columns};
    const Range rows = axis == Axis::rows ? range : all_rows;
    const Range columns = axis == Axis::columns ? range : all_columns;
    const std::optional<Range> i = tiles_of(rows, e.rows, kTileRows);
    const std::optional<Range> j = tiles_of(columns, e.columns, kTileColumns);
    if (!i || !j) {
      return std::nullopt;
    }
    const EncodedTiles tiles(e);
    EncodedWeight sliced = header_of(e.dtype, rows.count, columns.count);
    int64_t words = 0;
    const auto for_each_run = [&](auto&& body) {
      for (int64_t row = i->begin; row < i->begin + i->count; ++row) {
        body(Range{.begin = row * tiles.grid().columns + j->begin, .count = j->count});
      }
    };
    for_each_run([&](Range run) {
      words += std::ssize(tiles.words(run.begin, run.count));
      for (int64_t tile = run.begin; tile < run.begin + run.count; ++tile) {
        sliced.nonzeros += std::ssize(tiles.nonzeros(tile));
      }
    });
    Appender appender(i->count * j->count, words);
    for_each_run([&](Range run) { appender.append(tiles, run); });
    appender.move_to(sliced);
    return sliced;
  }

  // Where every part but the last is made of whole tiles.
  std::optional<EncodedWeight> concat_rows(
      std::span<const EncodedWeight* const> parts) const override {
    if (parts.empty()) {
      return std::nullopt;
    }
    EncodedWeight joined = header_of(parts[0]->dtype, 0, parts[0]->columns);
    int64_t tiles = 0;
    int64_t words = 0;
    for (const EncodedWeight* part : parts) {
      if (part->format != name() || part->version != version() || part->dtype != joined.dtype ||
          part->columns != joined.columns || joined.rows % kTileRows != 0) {
        return std::nullopt;
      }
      joined.rows = checked_add(joined.rows, part->rows, "rows of a joined weight");
      joined.nonzeros += part->nonzeros;
      tiles += tile_grid(part->rows, part->columns).count();
      words += part->part(kWords).count();
    }
    if (!why_too_many(words).empty()) {
      return std::nullopt;
    }
    Appender appender(tiles, words);
    for (const EncodedWeight* part : parts) {
      const EncodedTiles from(*part);
      appender.append(from, {.begin = 0, .count = from.grid().count()});
    }
    appender.move_to(joined);
    return joined;
  }

 private:
  std::unique_ptr<WeightMatrix> load_on_cpu(EncodedWeight e, ThreadPool& threads) const override {
    return make_panel_weight<Walker>(std::move(e), threads);
  }

  EncodedWeight header_of(DType dtype, int64_t rows, int64_t columns) const {
    return {.format = std::string(name()),
            .version = version(),
            .dtype = dtype,
            .rows = rows,
            .columns = columns,
            .nonzeros = 0,
            .parts = {}};
  }
};

}  // namespace

const WeightFormat& tiled_csl_format() {
  static const TiledCslFormat format;
  return format;
}

}  // namespace sparsellm
