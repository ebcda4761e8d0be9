#include "sparse/tca_bme/quantized/quantized_parts.h"

#include <array>

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
  return {.layout = layout,
          .records = quantized_grid(header.rows, header.columns).count(),
          .value_bytes = layout.nibbles() ? ceil_div(header.nonzeros, 2) : header.nonzeros,
          .row_scale_bytes = layout.nibbles() ? 0 : header.rows * int64_t{sizeof(float)}};
}

}  // namespace

QuantizedLayout read_quantized_layout(const EncodedWeight& e) {
  std::array<uint32_t, kQuantizedLayoutWords> words;
  read_layout_words(e, words);
  const auto& [values, offsets, group] = words;
  require(values <= 2, "tca_bme: values of the type {}, which is none of 0, 1 and 2", values);
  const bool nibbles = static_cast<QuantizedLayout::Values>(values) == QuantizedLayout::Values::i4;
  require(offsets == 8 || (offsets == 16 && !nibbles),
          "tca_bme: {} offsets of a chunk of values of {} bits", offsets, nibbles ? 4 : 8);
  require(nibbles ? group == 32 || group == 64 || group == 128 : group == 0,
          "tca_bme: a scale for {} columns of values of {} bits", group, nibbles ? 4 : 8);
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
            "tca_bme: the values of {} records are more than 32-bit starts of records hold",
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
  return ceil_div(elements, 8) + facts.value_bytes + facts.row_scale_bytes +
         header.rows * groups * int64_t{sizeof(uint16_t)};
}

int64_t expected_quantized_bytes(const EncodedWeight& header) {
  const QuantizedFacts facts = quantized_facts(header);
  // Records end anywhere in their last bytes, those of nibbles half a byte before an end as often.
  const double mean_padding = (kRecordAlignment - 1) / 2.0 + (facts.layout.nibbles() ? 0.25 : 0.0);
  const double records =
      static_cast<double>(facts.records) * (facts.layout.header_bytes() + mean_padding);
  return static_cast<int64_t>(records) + facts.value_bytes + facts.row_scale_bytes +
         (facts.records + 1 + kQuantizedLayoutWords) * int64_t{sizeof(uint32_t)};
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
  const auto group = static_cast<int32_t>(layout.nibbles() && elements > 0
                                              ? group_from(layout.group, slice.columns.begin)
                                              : layout.group);
  header.parts.push_back(
      quantized_layout_part(quantized_layout_for(layout.values, group, elements, header.nonzeros)));
  return {.bytes = expected_quantized_bytes(header), .nonzeros = header.nonzeros, .exact = false};
}

}  // namespace sparsellm::tca_bme
