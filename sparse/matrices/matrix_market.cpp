#include "sparse/matrices/matrix_market.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/json_reader.h"
#include "sparse/count_nonzeros.h"
#include "sparse/matrices/market_text.h"

namespace sparsellm {
namespace {

constexpr std::string_view kBannerWord = "%%matrixmarket";
constexpr int64_t kRowsOfAnyFile = 1 << 20;  // however short it is
constexpr int64_t kRowsPerByte = 4;          // of longer ones

enum class MarketField : uint8_t { real, integer, pattern };
constexpr std::array<std::string_view, 3> kMarketFields{"real", "integer", "pattern"};
enum class MarketSymmetry : uint8_t { general, symmetric, skew_symmetric };
constexpr std::array<std::string_view, 3> kMarketSymmetries{"general", "symmetric",
                                                            "skew-symmetric"};

std::string_view market_name(MarketSymmetry symmetry) {
  return kMarketSymmetries[static_cast<size_t>(symmetry)];
}

std::string market_lower_case(std::string_view text) {
  std::string small(text);
  for (char& c : small) {
    c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return small;
}

struct MarketHeader {
  MarketField field = MarketField::real;
  MarketSymmetry symmetry = MarketSymmetry::general;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t entries = 0;
};

struct MarketEntry {
  double value;
  uint32_t row;
  uint32_t column;
};

// Not initialised, unlike a vector.
class MarketEntries {
 public:
  explicit MarketEntries(int64_t count)
      : memory_({}, checked_mul(count, sizeof(MarketEntry), "bytes of entries"),
                "the entries of a matrix") {}
  MarketEntry* data() { return static_cast<MarketEntry*>(memory_.data()); }
  const MarketEntry* data() const { return static_cast<const MarketEntry*>(memory_.data()); }

 private:
  Buffer memory_;
};

// The place of the next word among `names`.
template <size_t N>
size_t read_choice(MarketText& text, const char* what,
                   const std::array<std::string_view, N>& names) {
  const std::string_view word = text.word();
  const auto found = std::ranges::find(names, market_lower_case(word));
  if (found == names.end()) {
    text.refuse("the {} {} is not read; expected {}", what, quote(word), fmt::join(names, ", "));
  }
  return static_cast<size_t>(found - names.begin());
}

MarketHeader read_market_header(MarketText& text) {
  const std::string_view head = text.head(kBannerWord.size());
  if (market_lower_case(head) != kBannerWord) {
    text.refuse_file("a .mtx file begins with %%MatrixMarket, not with {}", quote(head));
  }
  text.next_line();
  MarketHeader header;
  read_choice(text, "banner", std::array{kBannerWord});
  read_choice(text, "object", std::array{std::string_view("matrix")});
  read_choice(text, "format", std::array{std::string_view("coordinate")});
  header.field = static_cast<MarketField>(read_choice(text, "field", kMarketFields));
  header.symmetry = static_cast<MarketSymmetry>(read_choice(text, "symmetry", kMarketSymmetries));
  text.require_end_of_line("the banner");
  if (header.field == MarketField::pattern && header.symmetry == MarketSymmetry::skew_symmetric) {
    text.refuse("a pattern cannot be skew-symmetric");
  }

  if (!text.next_filled_line()) {
    text.refuse("the file ends before its sizes");
  }
  header.rows = text.number(0, CompressedRows::kMaxSize, "number of rows");
  header.columns = text.number(0, CompressedRows::kMaxSize, "number of columns");
  // The shortest entries are "1 1" and "1 1 1", and the last needs no end of its line.
  const int64_t entry_bytes = header.field == MarketField::pattern ? 4 : 6;
  const int64_t most_entries = (text.bytes_left() + 1) / entry_bytes;
  header.entries = text.number(0, MarketText::kMaxNumber, "number of entries");
  text.require_end_of_line("the sizes");
  if (header.entries > most_entries) {
    text.refuse("{} entries do not fit the {} bytes that follow", header.entries,
                text.bytes_left());
  }
  if (header.symmetry != MarketSymmetry::general && header.rows != header.columns) {
    text.refuse("a {} matrix {} x {} is not square", market_name(header.symmetry), header.rows,
                header.columns);
  }
  // The rows take memory even if they are empty.
  if (header.rows > std::max(kRowsOfAnyFile, kRowsPerByte * text.size())) {
    text.refuse("{} rows are too many for a file of {} bytes", header.rows, text.size());
  }
  return header;
}

// An entry that is not on the diagonal stands for two.
void require_lower_triangle(const MarketText& text, const MarketHeader& header, int64_t row,
                            int64_t column) {
  if (column > row) [[unlikely]] {
    text.refuse("row {}, column {} is above the diagonal of a {} matrix", row + 1, column + 1,
                market_name(header.symmetry));
  }
  if (column == row && header.symmetry == MarketSymmetry::skew_symmetric) [[unlikely]] {
    text.refuse("row {} has an entry on the diagonal of a skew-symmetric matrix", row + 1);
  }
}

// As they come in the file.
MarketEntries read_market_entries(MarketText& text, const MarketHeader& header) {
  MarketEntries entries(header.entries);
  for (int64_t i = 0; i < header.entries; ++i) {
    if (!text.next_filled_line()) [[unlikely]] {
      text.refuse("the file ends after {} of {} entries", i, header.entries);
    }
    const int64_t row = text.number(1, header.rows, "row") - 1;
    const int64_t column = text.number(1, header.columns, "column") - 1;
    double value = 1.0;
    if (header.field == MarketField::real) {
      value = text.real();
    } else if (header.field == MarketField::integer) {
      value = text.integer();
    }
    text.require_end_of_line("the entry");
    if (header.symmetry != MarketSymmetry::general) {
      require_lower_triangle(text, header, row, column);
    }
    entries.data()[i] = {value, static_cast<uint32_t>(row), static_cast<uint32_t>(column)};
  }
  if (text.next_filled_line()) {
    text.refuse("there are more than {} entries", header.entries);
  }
  text.require_intact();
  return entries;
}

// Both of a pair by rows, in each row in the order of the file. starts[r], which are 0, become the
// ends of the rows. Counting is not done while reading: between two lines of text the processor
// would not look far enough ahead to have several rows come from memory at a time.
MarketEntries place_by_rows(const MarketEntries& entries, const MarketHeader& header,
                            std::span<int64_t> starts) {
  const bool both = header.symmetry != MarketSymmetry::general;
  for (int64_t i = 0; i < header.entries; ++i) {
    const MarketEntry& entry = entries.data()[i];
    ++starts[entry.row + 1];
    if (both && entry.row != entry.column) {
      ++starts[entry.column + 1];
    }
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());

  MarketEntries placed(starts.back());
  for (int64_t i = 0; i < header.entries; ++i) {
    const MarketEntry& entry = entries.data()[i];
    placed.data()[starts[entry.row]++] = entry;
    if (both && entry.row != entry.column) {
      const bool negative = header.symmetry == MarketSymmetry::skew_symmetric;
      placed.data()[starts[entry.column]++] = {
          .value = negative ? -entry.value : entry.value, .row = entry.column, .column = entry.row};
    }
  }
  return placed;
}

// Sorts a row by columns and leaves one entry of each, with the sum as f32. Returns how many there
// are that are not 0.
int64_t sum_row(const MarketText& text, std::span<MarketEntry> row) {
  if (!std::ranges::is_sorted(row, {}, &MarketEntry::column)) {
    std::ranges::stable_sort(row, {}, &MarketEntry::column);
  }
  size_t count = 0;
  for (size_t i = 0; i < row.size();) {
    MarketEntry sum = row[i];
    for (++i; i < row.size() && row[i].column == sum.column; ++i) {
      sum.value += row[i].value;
    }
    if (!(std::abs(sum.value) < MarketText::kTooLarge)) [[unlikely]] {
      text.refuse_file("the entries of row {}, column {} have the sum {}, which f32 does not hold",
                       sum.row + 1, sum.column + 1, sum.value);
    }
    row[count] = sum;
    count += is_zero(static_cast<float>(sum.value)) ? 0 : 1;
  }
  return static_cast<int64_t>(count);
}

}  // namespace

CompressedRows read_matrix_market(const InputFile& file) {
  MarketText text(file);
  const MarketHeader header = read_market_header(text);
  std::vector<int64_t> ends(static_cast<size_t>(header.rows) + 1);
  MarketEntries placed = place_by_rows(read_market_entries(text, header), header, ends);

  int64_t count = 0;
  int64_t begin = 0;
  for (size_t row = 0; row < static_cast<size_t>(header.rows); ++row) {
    const std::span<MarketEntry> of_row(placed.data() + begin,
                                        static_cast<size_t>(ends[row] - begin));
    const int64_t kept = sum_row(text, of_row);
    std::copy_n(of_row.begin(), kept, placed.data() + count);  // forward, if they move at all
    begin = ends[row];
    count += kept;
    ends[row] = count;
  }

  CompressedRows m(DType::f32, header.rows, header.columns, count);
  m.starts()[0] = 0;
  std::copy_n(ends.begin(), header.rows, m.starts().begin() + 1);
  uint32_t* const columns = m.column_indices().data();
  float* const values = m.values<float>().data();
  for (int64_t i = 0; i < count; ++i) {
    columns[i] = placed.data()[i].column;
    values[i] = static_cast<float>(placed.data()[i].value);
  }
  return m;
}

}  // namespace sparsellm
