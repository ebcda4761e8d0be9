#include "tests/sparse/general_sparse/naive_encoding.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/general_sparse/host/arrange.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/matrices/random_matrix.h"

namespace sparsellm::testing {
namespace {

using general_sparse::PositionCode;

using PanelLayout = general_sparse::Layout;  // sparsellm::testing has a Layout, too

template <class T>
bool is_nonzero_value(T value) {
  return to_float(value) != 0.0f;  // NaN, too
}

template <class T>
struct Entry {
  uint32_t position = 0;  // as it is stored
  std::vector<T> values;
};

template <class T>
struct Group {
  uint16_t number = 0;  // in the window
  uint32_t last_position = 0;
  std::vector<Entry<T>> entries;
  size_t bridges = 0;             // that are not among the entries yet
  std::vector<uint32_t> columns;  // of the panel, without bridges
};

template <class T>
struct Arrays {
  std::vector<uint32_t> starts{0};
  std::vector<uint16_t> row_order;
  std::vector<uint32_t> positions;  // whatever their type
  std::vector<T> values;
};

struct PanelColumns {
  int64_t first = 0;
  int64_t count = 0;
};

template <class T>
Group<T> group_of(const Tensor& w, const PanelLayout& layout, int64_t first_row,
                  const PanelColumns& panel) {
  const auto shared_rows = static_cast<size_t>(layout.shared_rows);
  Group<T> group;
  for (int64_t c = 0; c < panel.count; ++c) {
    std::vector<T> values(shared_rows, T{});
    bool any = false;
    for (size_t r = 0; r < shared_rows; ++r) {
      const int64_t row = first_row + static_cast<int64_t>(r);
      if (row < w.size(0) && is_nonzero_value(w.row<T>(row)[panel.first + c])) {
        values[r] = w.row<T>(row)[panel.first + c];
        any = true;
      }
    }
    if (!any) {
      continue;
    }
    auto stored = static_cast<uint32_t>(c);
    if (layout.positions == PositionCode::u8) {
      uint32_t before = group.last_position;
      for (; stored - before > 255; before += 255) {
        group.entries.push_back({255, std::vector<T>(shared_rows, T{})});
      }
      stored -= before;
    } else if (layout.positions == PositionCode::i8) {
      for (uint32_t before = group.last_position; stored - before > 127; before += 127) {
        ++group.bridges;
      }
    }
    group.last_position = static_cast<uint32_t>(c);
    group.columns.push_back(group.last_position);
    group.entries.push_back({stored, values});
  }
  return group;
}

// The order of host/bank_order.h, by counting all remaining entries for each place.
template <class T>
void order_by_banks(Group<T>& group, size_t lane) {
  std::vector<Entry<T>> left = std::move(group.entries);
  group.entries.clear();
  while (!left.empty()) {
    std::array<size_t, 32> counts{};
    for (const Entry<T>& entry : left) {
      ++counts[entry.position % 32];
    }
    size_t best = (lane + group.entries.size()) % 32;
    const auto take_largest = [&](size_t first, size_t step) {
      for (size_t of_class = first; counts[best] == 0 && of_class < 32; of_class += step) {
        bool is_largest = counts[of_class] > 0;
        for (size_t other = first; other < 32; other += step) {
          is_largest = is_largest && counts[other] <= counts[of_class];
        }
        best = is_largest ? of_class : best;
      }
    };
    take_largest(best % 8, 8);
    take_largest(0, 1);
    const auto next = std::find_if(left.begin(), left.end(), [&](const Entry<T>& entry) {
      return entry.position % 32 == best;
    });
    group.last_position = next->position;
    group.entries.push_back(*next);
    left.erase(next);
  }
}

// The order of NearbyBankOrder, by looking through all that are left of a run for each place.
template <class T>
void order_nearby(Group<T>& group, size_t lane) {
  const std::vector<Entry<T>> all = std::move(group.entries);
  group.entries.clear();
  uint32_t before = 0;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    for (end = begin + 1; end < all.size() && all[end].position - all[end - 1].position <= 127;) {
      ++end;
    }
    while (all[begin].position - before > 127 && all[begin].position > before) {
      before += 127;
    }
    std::vector<size_t> left;
    for (size_t i = begin; i < end; ++i) {
      left.push_back(i);
    }
    while (!left.empty()) {
      const size_t wanted = (lane + group.entries.size()) % 8;
      auto next = std::find_if(left.begin(), left.end(),
                               [&](size_t i) { return all[i].position % 8 == wanted; });
      if (next == left.end() || *next + 1 == end ||
          all[*next + 1].position > all[left[0]].position + 127 ||
          all[*next].position > before + 127) {
        next = left.begin();
      }
      before = all[*next].position;
      group.entries.push_back(all[*next]);
      left.erase(next);
    }
  }
}

// Makes differences of positions.
template <class T>
void bridge(Group<T>& group, size_t shared_rows) {
  std::vector<Entry<T>> all = std::move(group.entries);
  group.entries.clear();
  int64_t before = 0;
  for (Entry<T>& entry : all) {
    const int64_t position = entry.position;
    for (; position - before > 127; before += 127) {
      group.entries.push_back({127, std::vector<T>(shared_rows, T{})});
    }
    entry.position = static_cast<uint32_t>(position - before);
    before = position;
    group.entries.push_back(entry);
  }
}

template <class T>
void append_slice(std::vector<Group<T>> lanes, const PanelLayout& layout, const PanelColumns& panel,
                  Arrays<T>& to) {
  const auto vector = static_cast<size_t>(layout.vector);
  lanes.resize(static_cast<size_t>(layout.interleave));
  for (size_t lane = 0; layout.positions == PositionCode::u16 && lane < lanes.size(); ++lane) {
    if (lanes.size() > 1) {
      order_by_banks(lanes[lane], lane);
    }
  }
  for (size_t lane = 0; layout.positions == PositionCode::i8 && lane < lanes.size(); ++lane) {
    if (lanes.size() > 1) {
      order_nearby(lanes[lane], lane);
    }
    bridge(lanes[lane], static_cast<size_t>(layout.shared_rows));
  }
  size_t longest = 0;
  for (const Group<T>& lane : lanes) {
    longest = std::max(longest, lane.entries.size());
  }
  longest = (longest + vector - 1) / vector * vector;
  for (Group<T>& lane : lanes) {
    const bool differences =
        layout.positions == PositionCode::u8 || layout.positions == PositionCode::i8;
    const uint32_t filler = differences ? 0 : lane.last_position;
    lane.entries.resize(longest,
                        {filler, std::vector<T>(static_cast<size_t>(layout.shared_rows), T{})});
  }
  for (size_t unit = 0; unit < longest / vector; ++unit) {
    for (const Group<T>& lane : lanes) {
      for (size_t i = 0; i < vector; ++i) {
        const Entry<T>& entry = lane.entries[unit * vector + i];
        if (layout.positions != PositionCode::bits) {
          to.positions.push_back(entry.position);
        }
        to.values.insert(to.values.end(), entry.values.begin(), entry.values.end());
      }
    }
  }
  to.starts.push_back(to.starts.back() + static_cast<uint32_t>(longest / vector));
  for (int64_t word = 0; layout.positions == PositionCode::bits && 32 * word < panel.count;
       ++word) {
    for (const Group<T>& lane : lanes) {
      uint32_t bits = 0;
      for (const uint32_t column : lane.columns) {
        bits |= column / 32 == word ? uint32_t{1} << column % 32 : 0;
      }
      to.positions.push_back(bits);
    }
  }
}

template <class T>
void append_chunk(std::vector<Group<T>> groups, const PanelLayout& layout,
                  const PanelColumns& panel, Arrays<T>& to) {
  if (layout.sorted) {
    std::stable_sort(groups.begin(), groups.end(), [](const Group<T>& a, const Group<T>& b) {
      return a.entries.size() + a.bridges > b.entries.size() + b.bridges;
    });
    for (const Group<T>& group : groups) {
      to.row_order.push_back(group.number);
    }
  }
  const auto lanes = static_cast<size_t>(layout.interleave);
  for (size_t first = 0; first < groups.size(); first += lanes) {
    const auto begin = groups.begin() + static_cast<std::ptrdiff_t>(first);
    const auto count = static_cast<std::ptrdiff_t>(std::min(lanes, groups.size() - first));
    append_slice(std::vector<Group<T>>(begin, begin + count), layout, panel, to);
  }
}

template <class T>
Arrays<T> naive_arrays(const Tensor& w, const PanelLayout& layout) {
  Arrays<T> arrays;
  const int64_t columns = w.size(1);
  const int64_t panel_columns = layout.panel_columns == 0 ? columns : layout.panel_columns;
  for (int64_t window = 0; window < w.size(0); window += layout.window_rows) {
    const int64_t window_end = std::min(window + layout.window_rows, w.size(0));
    int64_t first_column = 0;
    do {
      const PanelColumns panel{first_column, std::min(panel_columns, columns - first_column)};
      std::vector<Group<T>> groups;
      for (int64_t row = window; row < window_end; row += layout.shared_rows) {
        groups.push_back(group_of<T>(w, layout, row, panel));
        groups.back().number = static_cast<uint16_t>(groups.size() - 1);
      }
      append_chunk(groups, layout, panel, arrays);
      first_column += panel_columns;
    } while (first_column < columns);
  }
  return arrays;
}

template <class Stored, class Source>
EncodedPart part_of(std::string_view name, DType dtype, const std::vector<Source>& source) {
  auto part = new_part<Stored>(name, dtype, std::ssize(source));
  std::transform(source.begin(), source.end(), part.values.begin(),
                 [](Source value) { return static_cast<Stored>(value); });
  return std::move(part.part);
}

EncodedPart positions_part(PositionCode code, const std::vector<uint32_t>& positions) {
  switch (code) {
    case PositionCode::u8:
    case PositionCode::i8:
      return part_of<uint8_t>("positions", DType::u8, positions);
    case PositionCode::u16:
      return part_of<uint16_t>("positions", DType::u16, positions);
    default:
      return part_of<uint32_t>("positions", DType::u32, positions);
  }
}

// From a sparse matrix of f32.
OwnedTensor converted(const CompressedRows& m, DType dtype) {
  std::set<std::pair<int64_t, int64_t>> nonzeros;
  for (int64_t row = 0; row < m.rows(); ++row) {
    for (const uint32_t column : m.columns_of(row)) {
      nonzeros.emplace(row, column);
    }
  }
  return ones_matrix(dtype, m.rows(), m.columns(), [&](int64_t row, int64_t column) {
    return nonzeros.contains({row, column});
  });
}

}  // namespace

EncodedWeight naive_encoding(const Tensor& w, const PanelLayout& layout) {
  EncodedWeight e{.format = "general_sparse",
                  .version = 1,
                  .dtype = w.dtype(),
                  .rows = w.size(0),
                  .columns = w.size(1),
                  .nonzeros = 0,
                  .parts = {}};
  visit_float(w.dtype(), [&]<class T>(T) {
    const Arrays<T> arrays = naive_arrays<T>(w, layout);
    e.nonzeros = std::count_if(arrays.values.begin(), arrays.values.end(), is_nonzero_value<T>);
    const std::string text = to_text(layout);
    e.parts.push_back(
        part_of<uint8_t>("layout", DType::u8, std::vector<char>(text.begin(), text.end())));
    e.parts.push_back(part_of<uint32_t>("starts", DType::u32, arrays.starts));
    if (layout.sorted) {
      e.parts.push_back(part_of<uint16_t>("row_order", DType::u16, arrays.row_order));
    }
    e.parts.push_back(positions_part(layout.positions, arrays.positions));
    e.parts.push_back(part_of<T>("values", w.dtype(), arrays.values));
  });
  return e;
}

PanelLayout layout_by_rule(const CompressedRows& m, const RowStatistics& statistics, LayoutFor goal,
                           ThreadPool& threads) {
  return general_sparse::choose_layout(
      {.rows = m.rows(), .columns = m.columns(), .dtype = m.dtype()}, statistics, goal,
      [&](const PanelLayout& layout) {
        return encoded_size(general_sparse::EncoderInput(m, layout), m.dtype(), threads);
      });
}

std::vector<PanelLayout> layout_grid() {
  std::vector<PanelLayout> layouts;
  for (const PositionCode code : {PositionCode::u8, PositionCode::i8, PositionCode::u16,
                                  PositionCode::u32, PositionCode::bits}) {
    for (const int shared_rows : {1, 2, 4, 8}) {
      for (const int64_t panel : {64, 1024, code == PositionCode::u32 ? 0 : 65536}) {
        for (const int interleave : {1, 32}) {
          for (const int windows : {1, 4}) {
            for (const bool sorted : {false, true}) {
              for (const int vector : {1, 2, 8}) {
                layouts.push_back({.positions = code,
                                   .shared_rows = shared_rows,
                                   .panel_columns = panel,
                                   .window_rows = int64_t{interleave} * shared_rows * windows,
                                   .sorted = sorted,
                                   .interleave = interleave,
                                   .vector = vector});
              }
            }
          }
        }
      }
    }
  }
  return layouts;
}

OwnedTensor special_matrix(DType dtype, int64_t rows, int64_t columns, double density,
                           Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array kSpecial{1e-7f, -3e-6f, kInfinity, -kInfinity,
                                std::numeric_limits<float>::quiet_NaN()};
  OwnedTensor w = allocate_tensor({}, dtype, {rows, columns}, "a matrix of a test");
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < w.view.element_count(); ++i) {
      const bool special = random.below(8) == 0;
      float value = special ? -0.0f : 0.0f;
      if (random.uniform(0.0, 1.0) < density) {
        const double magnitude = random.uniform(0.1, 1.0);
        value = special ? kSpecial[static_cast<size_t>(random.below(std::ssize(kSpecial)))]
                        : static_cast<float>(random.below(2) == 0 ? magnitude : -magnitude);
      }
      w.view.data<T>()[i] = from_float<T>(value);
    }
  });
  return w;
}

std::vector<NamedMatrix> small_matrices(DType dtype, ThreadPool& threads) {
  Random random(20);
  std::vector<NamedMatrix> all;
  for (const double density : {0.0, 0.01, 0.1, 0.3, 0.5, 1.0}) {
    all.push_back(
        {fmt::format("density {}", density), special_matrix(dtype, 37, 150, density, random)});
  }
  const auto add = [&](std::string name, int64_t rows, int64_t columns, auto&& is_nonzero) {
    all.push_back({std::move(name), ones_matrix(dtype, rows, columns, is_nonzero)});
  };
  add("one row", 40, 100, [](int64_t row, int64_t) { return row == 33; });
  add("one column", 70, 100, [](int64_t, int64_t column) { return column == 64; });
  add("long gaps", 9, 1500, [](int64_t row, int64_t column) {
    static const std::set<int64_t> kColumns{0,    254,  255,  256,  511, 512,
                                            1023, 1151, 1279, 1406, 1499};
    return row % 2 == 0 ? column % (253 + row / 2) == 252 : kColumns.contains(column);
  });
  add("the last element", 3, 1300,
      [](int64_t row, int64_t column) { return row == 2 && column == 1299; });
  add("a one", 1, 1, [](int64_t, int64_t) { return true; });
  add("a zero", 1, 1, [](int64_t, int64_t) { return false; });
  add("no rows", 0, 70, [](int64_t, int64_t) { return false; });
  add("no columns", 70, 0, [](int64_t, int64_t) { return false; });
  add("nothing", 0, 0, [](int64_t, int64_t) { return false; });
  add("full", 33, 65, [](int64_t, int64_t) { return true; });
  for (const MatrixClass matrix_class : kMatrixClasses) {
    const CompressedRows m = random_matrix({.matrix_class = matrix_class,
                                            .rows = 81,
                                            .columns = 81,
                                            .nonzeros = 500,
                                            .seed = 7,
                                            .block_rows = 4,
                                            .block_columns = 4},
                                           threads);
    all.push_back({std::string(name_of(matrix_class)), converted(m, dtype)});
  }
  return all;
}

}  // namespace sparsellm::testing
