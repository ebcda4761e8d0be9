#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/count_nonzeros.h"
#include "sparse/general_sparse/format/parts.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {
namespace {

void check_header(const EncodedWeight& e) {
  constexpr int64_t kMaxSize = CompressedRows::kMaxSize;
  require(e.format == kName, "an encoding in the format {} is not one in {}", e.format, kName);
  require(e.version == kVersion, "version {} of the format {} is not known", e.version, kName);
  require(is_floating(e.dtype), "general_sparse: a weight of {} values", name_of(e.dtype));
  require(e.rows >= 0 && e.rows <= kMaxSize && e.columns >= 0 && e.columns <= kMaxSize,
          "general_sparse: a weight of {} x {} elements; at most {} rows and columns are possible",
          e.rows, e.columns, kMaxSize);
  require(e.nonzeros >= 0 && e.nonzeros <= e.rows * e.columns,
          "general_sparse: {} nonzeros in a weight of {} x {} elements", e.nonzeros, e.rows,
          e.columns);
}

// Parts of these sizes; of positions and values any if nothing is said.
struct EntryParts {
  int64_t positions;
  int64_t values;
};
void check_sizes(const EncodedWeight& e, const Layout& layout, const ChunkGrid& grid,
                 const std::optional<EntryParts>& counts) {
  const ExpectedPart text{kLayout, DType::u8, e.part(kLayout).count()};
  const ExpectedPart starts{kStarts, DType::u32, grid.slices() + 1};
  const ExpectedPart positions{kPositions, dtype_of(layout.positions),
                               counts ? counts->positions : e.part(kPositions).count()};
  const ExpectedPart values{kValues, e.dtype, counts ? counts->values : e.part(kValues).count()};
  if (layout.sorted) {
    require_parts(e, {text, starts, {kRowOrder, DType::u16, grid.places()}, positions, values});
  } else {
    require_parts(e, {text, starts, positions, values});
  }
}

// Layout, sizes and starts: after this Parts may be made of it, whose lanes are inside.
void check_frame(const EncodedWeight& e) {
  check_header(e);
  const Layout layout = read_layout(e);
  const ChunkGrid grid(layout, e.rows, e.columns);
  check_sizes(e, layout, grid, std::nullopt);
  const std::span<const uint32_t> starts = e.part(kStarts).values<uint32_t>();
  require(starts.front() == 0, "general_sparse: the part starts: the first is {}, not 0",
          starts.front());
  const auto end = std::is_sorted_until(starts.begin(), starts.end());
  if (end != starts.end()) {
    fail("general_sparse: the part starts: slice {} begins with {} and ends with {}",
         end - starts.begin() - 1, *(end - 1), *end);
  }
  const int64_t entries = int64_t{starts.back()} * layout.interleave * layout.vector;
  const bool bits = layout.positions == PositionCode::bits;
  check_sizes(e, layout, grid,
              EntryParts{.positions = bits ? grid.words() : entries,
                         .values = entries * layout.shared_rows});
}

// Of one window after the other, with the same memory.
template <class T>
class WindowChecker {
 public:
  WindowChecker(const EncodedWeight& e, const Parts& parts)
      : rows_(e.rows), parts_(parts), values_(parts.values.values<T>()) {}

  // Returns how many nonzeros the window has.
  int64_t check(int64_t window) {
    window_ = window;
    int64_t nonzeros = 0;
    for (panel_ = 0; panel_ < parts_.grid.panels(); ++panel_) {
      chunk_ = parts_.grid.chunk(window, panel_);
      if (parts_.layout.sorted) {
        check_order();
      }
      for (place_ = 0; place_ < chunk_.slices * parts_.layout.interleave; ++place_) {
        nonzeros += check_lane(parts_.lane(chunk_, place_));
      }
    }
    return nonzeros;
  }

 private:
  // An Error about a place of the chunk.
  template <class... Args>
  [[noreturn]] void refuse(std::string_view part, fmt::format_string<Args...> format,
                           Args&&... args) const {
    fail("general_sparse: the part {}: window {}, panel {}, place {}: {}", part, window_, panel_,
         place_, fmt::format(format, std::forward<Args>(args)...));
  }

  int64_t group_in_window() const {
    return parts_.layout.sorted ? parts_.row_order[static_cast<size_t>(chunk_.first_place + place_)]
                                : place_;
  }

  void check_order() {
    seen_.assign(static_cast<size_t>(chunk_.groups), false);
    for (place_ = 0; place_ < chunk_.groups; ++place_) {
      const int64_t group = group_in_window();
      if (group >= chunk_.groups) {
        refuse(kRowOrder, "group {} of {}", group, chunk_.groups);
      }
      if (seen_[static_cast<size_t>(group)]) {
        refuse(kRowOrder, "group {} has a place before", group);
      }
      seen_[static_cast<size_t>(group)] = true;
    }
  }

  // How many rows of the matrix a lane has.
  int64_t lane_rows() const {
    if (place_ >= chunk_.groups) {
      return 0;
    }
    const int64_t first_row = (chunk_.first_group + group_in_window()) * parts_.layout.shared_rows;
    return std::min<int64_t>(parts_.layout.shared_rows, rows_ - first_row);
  }

  int64_t check_lane(const Lane& lane) {
    if (parts_.layout.positions == PositionCode::bits) {
      check_bits(lane);
    }
    const int64_t rows = lane_rows();
    int64_t nonzeros = 0;
    int64_t before = -1;
    bool ascending = true;
    parts_.for_each_entry(chunk_, lane, [&](int64_t position, size_t number) {
      if (position < 0 || position >= chunk_.columns) {
        refuse(kPositions, "an entry in column {} of {}", position, chunk_.columns);
      }
      const int64_t of_entry = check_values(number, rows);
      if (of_entry > 0) {
        ascending &= position > before;
        before = position;
        nonzeros += of_entry;
      }
    });
    if (!ascending) {
      check_elements(lane);
    }
    return nonzeros;
  }

  // The bits, and the fillers after them.
  void check_bits(const Lane& lane) const {
    const std::span<const uint32_t> words = parts_.positions.values<uint32_t>();
    int64_t bits = 0;
    for (int64_t w = 0; w < chunk_.group_words; ++w) {
      const uint32_t word = words[parts_.numbers.word(lane, w)];
      const int64_t columns = chunk_.columns - w * ChunkGrid::kWordBits;
      if (place_ >= chunk_.groups && word != 0) {
        refuse(kPositions, "word {} of a lane without a group is {:#x}", w, word);
      }
      if (columns < ChunkGrid::kWordBits && word >> columns != 0) {
        refuse(kPositions, "word {} is {:#x}, but there are {} columns", w, word, columns);
      }
      bits += std::popcount(word);
    }
    if (bits > lane.entries) {
      refuse(kPositions, "{} bits, but {} entries", bits, lane.entries);
    }
    for (int64_t entry = bits; entry < lane.entries; ++entry) {
      if (!all_zero(parts_.numbers(lane, entry))) {
        refuse(kValues, "entry {} after {} bits is not 0", entry, bits);
      }
    }
  }

  // Of an entry.
  std::span<const T> values_of(size_t number) const {
    const auto shared_rows = static_cast<size_t>(parts_.layout.shared_rows);
    return values_.subspan(number * shared_rows, shared_rows);
  }

  bool all_zero(size_t number) const {
    return std::ranges::all_of(values_of(number), [](T value) { return is_zero(value); });
  }

  // Checks an entry of a lane that has `rows` rows. Returns the number of nonzeros.
  int64_t check_values(size_t number, int64_t rows) const {
    const std::span<const T> values = values_of(number);
    int64_t nonzeros = 0;
    for (size_t row = 0; row < values.size(); ++row) {
      if (!is_zero(values[row])) {
        ++nonzeros;
        if (static_cast<int64_t>(row) >= rows) {
          refuse(kValues, "entry {} has a nonzero in row {}, of {} rows", number, row, rows);
        }
      } else if (std::signbit(to_float(values[row]))) {
        refuse(kValues, "entry {} has a negative zero", number);
      }
    }
    return nonzeros;
  }

  // That no two nonzeros of a lane are one element.
  void check_elements(const Lane& lane) {
    const auto shared_rows = static_cast<size_t>(parts_.layout.shared_rows);
    elements_.clear();
    parts_.for_each_entry(chunk_, lane, [&](int64_t position, size_t number) {
      for (size_t row = 0; row < shared_rows; ++row) {
        if (!is_zero(values_[number * shared_rows + row])) {
          elements_.push_back(static_cast<size_t>(position) * shared_rows + row);
        }
      }
    });
    std::ranges::sort(elements_);
    const auto twice = std::ranges::adjacent_find(elements_);
    if (twice != elements_.end()) {
      refuse(kPositions, "two nonzeros in column {}", *twice / shared_rows);
    }
  }

  int64_t rows_;
  const Parts& parts_;
  std::span<const T> values_;
  int64_t window_ = 0;
  int64_t panel_ = 0;
  int64_t place_ = 0;
  Chunk chunk_;
  std::vector<bool> seen_;          // groups of the chunk
  std::vector<uint64_t> elements_;  // of a lane
};

}  // namespace

void validate(const EncodedWeight& e, ThreadPool& threads) {
  check_frame(e);
  const Parts parts(e);
  std::atomic<int64_t> nonzeros = 0;
  visit_float(e.dtype, [&]<class T>(T) {
    threads.parallel_for(parts.grid.windows(), 1, [&](int64_t begin, int64_t end) {
      WindowChecker<T> checker(e, parts);
      for (int64_t window = begin; window < end; ++window) {
        nonzeros += checker.check(window);
      }
    });
  });
  require(nonzeros == e.nonzeros, "general_sparse: {} nonzeros, but {} are stored", e.nonzeros,
          nonzeros.load());
}

}  // namespace sparsellm::general_sparse
