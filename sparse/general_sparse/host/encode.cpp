#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/format/encoded_size.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/arrange.h"
#include "sparse/general_sparse/host/drop_zeros.h"
#include "sparse/general_sparse/host/group_writer.h"
#include "sparse/general_sparse/host/nonzero_bits.h"
#include "sparse/general_sparse/host/panel_groups.h"
#include "sparse/general_sparse/host/shared_columns.h"
#include "sparse/general_sparse/layout_rule.h"

namespace sparsellm::general_sparse {
namespace {

void require_valid(const Layout& layout) {
  if (const std::optional<std::string> reason = why_invalid(layout)) {
    fail("layout: {}", *reason);
  }
}

struct Arrangement {
  NewPart<uint32_t> starts;
  std::optional<NewPart<uint16_t>> row_order;  // if sorted
};

Arrangement arrange_windows(const EncoderInput& input, ThreadPool& threads) {
  Arrangement result{.starts = new_part<uint32_t>(kStarts, DType::u32, input.grid.slices() + 1),
                     .row_order = std::nullopt};
  if (input.layout.sorted) {
    result.row_order = new_part<uint16_t>(kRowOrder, DType::u16, input.grid.places());
  }
  const std::span<uint32_t> starts = result.starts.values;
  threads.parallel_for(input.grid.windows(), 1, [&](int64_t begin, int64_t end) {
    WindowArranger arranger(input);
    for (int64_t window = begin; window < end; ++window) {
      arranger.arrange(window);
      const Chunk first = input.grid.chunk(window, 0);
      std::ranges::copy(arranger.slice_units(), starts.begin() + first.first_slice + 1);
      if (result.row_order) {
        std::ranges::copy(arranger.order(), result.row_order->values.begin() + first.first_place);
      }
    }
  });
  starts[0] = 0;
  int64_t units = 0;
  for (uint32_t& start : starts) {
    units += start;
    require_starts_reach(input.layout, units);
    start = static_cast<uint32_t>(units);
  }
  return result;
}

// A window, chunk after chunk.
template <class Groups, class Writer>
void write_window(const EncoderInput& input, int64_t window, std::span<const uint16_t> row_order,
                  Groups& groups, Writer& writer) {
  for (int64_t panel = 0; panel < input.grid.panels(); ++panel) {
    const Chunk chunk = input.grid.chunk(window, panel);
    for (int64_t place = 0; place < chunk.slices * input.layout.interleave; ++place) {
      writer.begin(chunk, place);
      if (place < chunk.groups) {
        const int64_t group =
            row_order.empty() ? place : row_order[static_cast<size_t>(chunk.first_place + place)];
        writer.add(groups(chunk, chunk.first_group + group));
      }
      writer.end();
    }
  }
}

// Nonzeros that are written in the order of their columns.
template <class T>
struct AscendingNonzeros {
  const CompressedRows& m;
};

// A window, all chunks of it at once: a group's nonzeros are read from left to right.
template <class T, class Writer>
void write_window(const EncoderInput& input, int64_t window, std::span<const uint16_t> row_order,
                  AscendingNonzeros<T>& nonzeros, Writer& writer) {
  const std::span<const T> all_values = nonzeros.m.template values<T>();
  const int64_t panels = input.grid.panels();
  std::vector<Chunk> chunks;
  for (int64_t panel = 0; panel < panels; ++panel) {
    chunks.push_back(input.grid.chunk(window, panel));
  }
  const int64_t groups = chunks[0].groups;
  std::vector<int64_t> places(input.layout.sorted ? static_cast<size_t>(panels * groups) : 0);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto in_chunk = static_cast<int64_t>(i) % groups;
    const auto group = row_order[static_cast<size_t>(chunks[0].first_place) + i];
    places[i - static_cast<size_t>(in_chunk) + group] = in_chunk;
  }
  for (int64_t g = 0; g < groups; ++g) {
    int64_t panel = 0;
    const auto begin = [&] {
      writer.begin(chunks[static_cast<size_t>(panel)],
                   places.empty() ? g : places[static_cast<size_t>(panel * groups + g)]);
    };
    const auto go_on_to = [&](int64_t next_panel) {
      while (panel < next_panel) {
        writer.end();
        ++panel;
        begin();
      }
    };
    begin();
    for_each_shared_column(
        nonzeros.m, input.layout.shared_rows, chunks[0].first_group + g,
        [&](uint32_t column, const ColumnNonzeros& of_rows) {
          go_on_to(input.grid.panel_of(column));
          writer.add(column - chunks[static_cast<size_t>(panel)].first_column, [&](int row) {
            const int64_t i = of_rows[static_cast<size_t>(row)];
            return i == kNoNonzero ? T{} : all_values[static_cast<size_t>(i)];
          });
        });
    go_on_to(panels - 1);
    writer.end();
  }
  for (const Chunk& chunk : chunks) {  // lanes without a group
    for (int64_t place = groups; place < chunk.slices * input.layout.interleave; ++place) {
      writer.begin(chunk, place);
      writer.end();
    }
  }
}

template <class T, PositionCode code, class Source>
void write_entries(const EncoderInput& input, const Source& source, const Arrangement& arrangement,
                   ThreadPool& threads, std::vector<EncodedPart>& parts) {
  using Writer = GroupWriter<T, code>;
  const std::span<const uint32_t> starts = arrangement.starts.values;
  const int64_t units = starts.back();
  auto positions = new_part<typename Writer::Position>(
      kPositions, dtype_of(code), position_count(input.layout, input.grid, units));
  auto values = new_part<T>(kValues, DTypeOf<T>::value,
                            entries_in(input.layout, units) * input.layout.shared_rows);
  const typename Writer::Arrays arrays{
      .starts = starts, .positions = positions.values, .values = values.values};
  const std::span<const uint16_t> row_order =
      arrangement.row_order ? arrangement.row_order->values : std::span<uint16_t>();
  threads.parallel_for(input.grid.windows(), 1, [&](int64_t begin, int64_t end) {
    Writer writer(input.layout, arrays);
    Source of_range = source;
    for (int64_t window = begin; window < end; ++window) {
      write_window(input, window, row_order, of_range, writer);
    }
  });
  parts.push_back(std::move(positions.part));
  parts.push_back(std::move(values.part));
}

template <class T, class Source>
void write_entries(const EncoderInput& input, const Source& source, const Arrangement& arrangement,
                   ThreadPool& threads, std::vector<EncodedPart>& parts) {
  switch (input.layout.positions) {
    case PositionCode::u8:
      return write_entries<T, PositionCode::u8>(input, source, arrangement, threads, parts);
    case PositionCode::i8:
      return write_entries<T, PositionCode::i8>(input, source, arrangement, threads, parts);
    case PositionCode::u16:
      return write_entries<T, PositionCode::u16>(input, source, arrangement, threads, parts);
    case PositionCode::u32:
      return write_entries<T, PositionCode::u32>(input, source, arrangement, threads, parts);
    case PositionCode::bits:
      return write_entries<T, PositionCode::bits>(input, source, arrangement, threads, parts);
  }
}

NewPart<uint8_t> layout_part(const Layout& layout) {
  const std::string text = to_text(layout);
  auto part = new_part<uint8_t>(kLayout, DType::u8, std::ssize(text));
  std::ranges::copy(text, part.values.begin());
  return part;
}

EncodedWeight without_parts(DType dtype, int64_t rows, int64_t columns, int64_t nonzeros) {
  return {.format = std::string(kName),
          .version = kVersion,
          .dtype = dtype,
          .rows = rows,
          .columns = columns,
          .nonzeros = nonzeros,
          .parts = {}};
}

// write(T, arrangement) appends positions and values, whose type is T, to the parts of e.
template <class Write>
void add_parts(const EncoderInput& input, ThreadPool& threads, EncodedWeight& e, Write&& write) {
  Arrangement arrangement = arrange_windows(input, threads);
  e.parts.push_back(layout_part(input.layout).part);
  e.parts.push_back(std::move(arrangement.starts.part));
  if (arrangement.row_order) {
    e.parts.push_back(std::move(arrangement.row_order->part));
  }
  visit_float(e.dtype, [&]<class T>(T type) { write(type, arrangement); });
}

EncodedWeight encode_nonzeros(const CompressedRows& m, const Layout& layout, ThreadPool& threads) {
  const EncoderInput input(m, layout);
  EncodedWeight e = without_parts(m.dtype(), m.rows(), m.columns(), m.nonzeros());
  add_parts(input, threads, e, [&]<class T>(T, const Arrangement& arrangement) {
    if (layout.interleave > 1 && has_bank_order(layout.positions)) {
      const CompressedGroups<T> groups(m, layout.shared_rows);
      write_entries<T>(input, groups, arrangement, threads, e.parts);
    } else {
      write_entries<T>(input, AscendingNonzeros<T>{m}, arrangement, threads, e.parts);
    }
  });
  return e;
}

EncodedWeight encode_dense(const Tensor& w, const NonzeroBits& bits, int64_t nonzeros,
                           const Layout& layout, ThreadPool& threads) {
  const EncoderInput input(bits.rows(), layout);
  EncodedWeight e = without_parts(w.dtype(), w.size(0), w.size(1), nonzeros);
  add_parts(input, threads, e, [&]<class T>(T, const Arrangement& arrangement) {
    const DenseGroups<T> groups(w, bits.rows(), layout.shared_rows);
    write_entries<T>(input, groups, arrangement, threads, e.parts);
  });
  return e;
}

}  // namespace

EncodedWeight encode(const CompressedRows& m, const Layout& layout, ThreadPool& threads) {
  require_valid(layout);
  const std::optional<CompressedRows> rest = drop_zeros(m, threads);
  return encode_nonzeros(rest ? *rest : m, layout, threads);
}

EncodedWeight encode(const Tensor& w, const Layout& layout, ThreadPool& threads) {
  require_valid(layout);
  const NonzeroBits bits(w, threads);
  return encode_dense(w, bits, bits.statistics(threads).nonzeros, layout, threads);
}

EncodedWeight encode(const Tensor& w, LayoutFor goal, ThreadPool& threads) {
  const NonzeroBits bits(w, threads);
  const RowStatistics statistics = bits.statistics(threads);
  const Layout layout =
      choose_layout({.rows = w.size(0), .columns = w.size(1), .dtype = w.dtype()}, statistics, goal,
                    [&](const Layout& tried) {
                      return encoded_size(EncoderInput(bits.rows(), tried), w.dtype(), threads);
                    });
  return encode_dense(w, bits, statistics.nonzeros, layout, threads);
}

}  // namespace sparsellm::general_sparse
