#include "sparse/tca_bme/quantized/quantized_parts.h"

#include <array>

#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

// Of a header.
struct QuantizedFacts {
  QuantizedLayout layout;
  int64_t records = 0;
  int64_t value_bytes = 0;
  int64_t row_scale_bytes = 0;
};

QuantizedFacts quantized_facts(const EncodedWeight& header) {
  const QuantizedLayout layout = read_quantized_layout(header);
  const int64_t values = layout.dense() ? header.rows * header.columns : header.nonzeros;
  return {.layout = layout,
          .records = quantized_grid(header.rows, header.columns).count(),
          .value_bytes = layout.nibbles() ? ceil_div(values, 2) : values,
          .row_scale_bytes = layout.nibbles() ? 0 : header.rows * int64_t{sizeof(float)}};
}

}  // namespace

std::optional<ValueType> dense_values(std::string_view format) {
  return format == kDenseI8   ? std::optional(ValueType::i8)
         : format == kDenseI4 ? std::optional(ValueType::i4)
                              : std::nullopt;
}

bool has_quantized_records(const EncodedWeight& e) {
  return dense_values(e.format) || (e.format == kName && is_quantized(e));
}

QuantizedLayout quantized_layout_in(std::string_view format, QuantizedLayout::Values values,
                                    int64_t group, int64_t elements, int64_t nonzeros) {
  const auto columns =
      static_cast<int32_t>(values == QuantizedLayout::Values::i4 ? group : int64_t{0});
  return dense_values(format) ? QuantizedLayout{.values = values, .offsets = 0, .group = columns}
                              : quantized_layout_for(values, columns, elements, nonzeros);
}

QuantizedLayout read_quantized_layout(const EncodedWeight& e) {
  std::array<uint32_t, kQuantizedLayoutWords> words;
  read_layout_words(e, words);
  const auto& [values, offsets, group] = words;
  const std::optional<ValueType> dense = dense_values(e.format);
  require(values <= 2, "{}: values of the type {}, which is none of 0, 1 and 2", e.format, values);
  require(!dense || static_cast<QuantizedLayout::Values>(values) == values_of(*dense),
          "{}: values of the type {}", e.format, values);
  const bool nibbles = static_cast<QuantizedLayout::Values>(values) == QuantizedLayout::Values::i4;
  require(dense ? offsets == 0 : offsets == 8 || (offsets == 16 && !nibbles),
          "{}: {} offsets of a chunk of values of {} bits", e.format, offsets, nibbles ? 4 : 8);
  require(nibbles ? group == 32 || group == 64 || group == 128 : group == 0,
          "{}: a scale for {} columns of values of {} bits", e.format, group, nibbles ? 4 : 8);
  return {.values = static_cast<QuantizedLayout::Values>(values),
          .offsets = static_cast<int32_t>(offsets),
          .group = static_cast<int32_t>(group)};
}

EncodedPart quantized_layout_part(const QuantizedLayout& layout) {
  return layout_words_part(std::array{static_cast<uint32_t>(layout.values),
                                      static_cast<uint32_t>(layout.offsets),
                                      static_cast<uint32_t>(layout.group)});
}

QuantizedParts::QuantizedParts(const EncodedWeight& e)
    : RecordArrays(e, quantized_grid(e.rows, e.columns)),
      layout(read_quantized_layout(e)),
      rows(e.rows),
      columns(e.columns) {
  if (!layout.nibbles()) {
    scales = e.part(kScales).values<float>();
  }
}

std::vector<uint32_t> quantized_starts(const QuantizedLayout& layout,
                                       std::span<const int32_t> record_bits) {
  std::vector<uint32_t> starts;
  starts.reserve(record_bits.size() + 1);
  starts.push_back(0);
  int64_t end = 0;
  for (const int32_t bits : record_bits) {
    end += layout.record_bytes(bits) / kRecordAlignment;
    require(end <= int64_t{UINT32_MAX},
            "the values of {} records are more than 32-bit starts of records hold",
            record_bits.size());
    starts.push_back(static_cast<uint32_t>(end));
  }
  return starts;
}

int64_t quantized_formula_bytes(const EncodedWeight& header) {
  const QuantizedFacts facts = quantized_facts(header);
  const int64_t elements = header.rows * header.columns;
  const int64_t groups =
      facts.layout.nibbles() ? ceil_div(header.columns, facts.layout.group) : int64_t{0};
  return (facts.layout.dense() ? 0 : ceil_div(elements, 8)) + facts.value_bytes +
         facts.row_scale_bytes + header.rows * groups * int64_t{sizeof(uint16_t)};
}

int64_t expected_quantized_bytes(const EncodedWeight& header) {
  const QuantizedFacts facts = quantized_facts(header);
  const int64_t words = facts.records + 1 + kQuantizedLayoutWords;  // starts and layout
  if (facts.layout.dense()) {
    return facts.records * facts.layout.max_record_bytes() + facts.row_scale_bytes +
           words * int64_t{sizeof(uint32_t)};
  }
  // Records end anywhere in their last bytes, those of nibbles half a byte before an end as often.
  const double mean_padding = (kRecordAlignment - 1) / 2.0 + (facts.layout.nibbles() ? 0.25 : 0.0);
  const double records =
      static_cast<double>(facts.records) * (facts.layout.header_bytes() + mean_padding);
  return static_cast<int64_t>(records) + facts.value_bytes + facts.row_scale_bytes +
         words * int64_t{sizeof(uint32_t)};
}

EncodedSize expected_quantized_size(const EncodedWeight& e, const Slice& slice) {
  const QuantizedLayout layout = read_quantized_layout(e);
  EncodedWeight header{.format = e.format,
                       .version = e.version,
                       .dtype = e.dtype,
                       .rows = slice.rows.count,
                       .columns = slice.columns.count,
                       .nonzeros = 0,
                       .parts = {}};
  const int64_t elements = header.rows * header.columns;
  header.nonzeros = proportional(e.nonzeros, elements, e.rows * e.columns);
  const int64_t group = layout.nibbles() && elements > 0
                            ? group_from(layout.group, slice.columns.begin)
                            : layout.group;
  header.parts.push_back(quantized_layout_part(
      quantized_layout_in(e.format, layout.values, group, elements, header.nonzeros)));
  return {.bytes = expected_quantized_bytes(header), .nonzeros = header.nonzeros, .exact = false};
}

}  // namespace sparsellm::tca_bme
