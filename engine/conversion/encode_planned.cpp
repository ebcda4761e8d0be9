#include "engine/conversion/encode_planned.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "sparse/choice/narrow_rules.h"
#include "sparse/dense/dense.h"
#include "sparse/narrow_encoding.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "sparse/smallest_encoding.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {
namespace {

constexpr std::string_view kDTypeHint = "pass --dtype f16 or bf16";

std::string no_smaller(std::string_view formats) {
  return fmt::format("no smaller as {}", formats);
}

// Of a weight for which encode_smallest() finds nothing.
std::string why_dense(const Tensor& w, std::span<const WeightFormat* const> formats) {
  std::vector<std::string_view> names;
  bool holds = false;
  std::optional<std::string> reason;  // of the first
  bool takes = false;
  for (const WeightFormat* format : formats) {
    if (format != &dense_format()) {
      names.push_back(format->name());
      holds = holds || format->holds(w.dtype());
      const std::string why_not = format->why_not(w);
      takes = takes || why_not.empty();
      reason = reason ? reason : why_not;
    }
  }
  if (!holds) {
    return fmt::format("stored as {}, which {} {} not hold: {}", name_of(w.dtype()),
                       fmt::join(names, " and "), names.size() == 1 ? "does" : "do", kDTypeHint);
  }
  return takes ? no_smaller(fmt::format("{}", fmt::join(names, " or "))) : *reason;
}

PlannedEncoding encode_in(const WeightFormat& format, const LayerPlan& plan, const Tensor& values,
                          ThreadPool& threads) {
  const LayoutOptions layout = plan.layout_in(format.name());
  if (std::string reason = format.why_not(values); !reason.empty()) {
    return {.why_dense = format.holds(values.dtype()) ? std::move(reason)
                                                      : fmt::format("{}: {}", reason, kDTypeHint)};
  }
  if (!format.values_in(layout.layout).empty()) {
    NarrowEncoding narrow = encode_narrow(values, format, layout.layout, threads);
    return {.encoded = std::move(narrow.encoded), .rounded = std::move(narrow.values)};
  }
  return {.encoded = format.encode(values, layout, threads)};
}

bool is_part(const Tensor& values, const PlannedFor& what) {
  return what.joined.rows != values.size(0);
}

PlannedEncoding encode_by_rules(const Tensor& values, const LayerPlan& plan, const PlannedFor& what,
                                ThreadPool& threads) {
  const std::string records = plan.records();
  const bool narrow = has_narrow_values(records);
  const WeightFormat& format = narrow ? choose_narrow_format(what.joined, values.dtype(), records)
                                      : what.rules.choose(what.joined, kDecodedTokens);
  if (narrow && &format == &dense_format()) {
    return {.why_dense = why_dense(values, formats_with_values(records))};
  }
  if (&format == &dense_format()) {
    return {.why_dense = fmt::format("faster dense on {}, by the rules for {} tokens",
                                     what.rules.gpu(), kDecodedTokens)};
  }
  PlannedEncoding result = encode_in(format, plan, values, threads);
  // A part of a joined layer is in the format that the layer gains by.
  if (result.encoded && result.encoded->bytes() >= values.bytes() &&
      !(is_part(values, what) &&
        saves_bytes(format, what.joined, values.dtype(), plan.layout_in(format.name())))) {
    return {.why_dense = no_smaller(format.name())};
  }
  return result;
}

// Whether a plan's records are not other narrow values than these.
bool keeps_codes(std::string_view records, const QuantizedMatrix& q) {
  const auto choice = tca_bme::quantized_choice(records);
  return !choice ||
         (choice->type == q.type && (q.type != ValueType::i4 || choice->group == q.group));
}

// Of those that hold these narrow values, the format in which a weight can be expected to have them
// in the fewest bytes.
const WeightFormat& smallest_narrow(const WeightSize& weight, DType dtype,
                                    std::string_view records) {
  const auto bytes = [&](const WeightFormat* format) {
    EncodedWeight header = weight_header(*format, weight, dtype);
    format->tell_layout(header, records_in(format->name(), records));
    return format->expected_bytes(header);
  };
  const std::vector<const WeightFormat*> formats = formats_with_values(records);
  return **std::ranges::min_element(formats, {}, bytes);
}

// The format, of those with narrow values, in which a plan has these as they are; empty: in none.
std::string_view format_of_codes(const LayerPlan& plan, const PlannedFor& what, DType dtype) {
  const QuantizedMatrix& q = *what.quantized;
  if (!keeps_codes(plan.layout, q)) {
    return {};
  }
  const std::string records = tca_bme::text_of({.type = q.type, .group = q.group});
  if (plan.format == kSmallestFormat) {
    return smallest_narrow(what.joined, dtype, records).name();
  }
  if (plan.format == kAutoFormat) {
    const WeightFormat& format = choose_narrow_format(what.joined, dtype, records);
    return &format == &dense_format() ? smallest_narrow(what.joined, dtype, records).name()
                                      : format.name();
  }
  return plan.format == tca_bme_format().name() || tca_bme::dense_values(plan.format) == q.type
             ? std::string_view(plan.format)
             : std::string_view();
}

// With the narrow values of the plan, in that format which holds them in the fewest bytes. Parts of
// a joined layer are in the one in which the layer can be expected to have them, if it gains by
// that: what a layer has in several formats becomes 16 bits wide while it is loaded.
PlannedEncoding encode_smallest_narrow(const Tensor& values, const LayerPlan& plan,
                                       const PlannedFor& what, ThreadPool& threads) {
  const std::string records = plan.records();
  std::vector<const WeightFormat*> formats = formats_with_values(records);
  if (is_part(values, what)) {
    formats = {&smallest_narrow(what.joined, values.dtype(), records)};
  }
  PlannedEncoding result = encode_in(*formats.front(), plan, values, threads);
  if (!result.encoded) {
    return result;
  }
  for (const WeightFormat* format : std::span(formats).subspan(1)) {
    EncodedWeight other =
        tca_bme::encode_quantized(*result.rounded, format->name(), values.dtype(), threads);
    if (other.bytes() < result.encoded->bytes()) {
      result.encoded = std::move(other);
    }
  }
  const bool gains = is_part(values, what)
                         ? saves_bytes(*formats.front(), what.joined, values.dtype(),
                                       plan.layout_in(formats.front()->name()))
                         : result.encoded->bytes() < values.bytes();
  return gains ? std::move(result) : PlannedEncoding{.why_dense = why_dense(values, formats)};
}

// Those of formats that can hold what the plan wants, in that which takes the fewest bytes.
PlannedEncoding encode_smallest_planned(const Tensor& values, const LayerPlan& plan,
                                        const PlannedFor& what, ThreadPool& threads) {
  if (has_narrow_values(plan.records())) {
    return encode_smallest_narrow(values, plan, what, threads);
  }
  PlannedEncoding result{.encoded =
                             encode_smallest(values, smallest_formats(), threads, plan.records())};
  if (!result.encoded) {
    result.why_dense = why_dense(values, smallest_formats());
  }
  return result;
}

// Rows of a from the first one on are those of b, except for the signs of zeros of f8.
bool same_codes(const QuantizedMatrix& a, int64_t first, const QuantizedMatrix& b) {
  if (a.type != b.type || a.columns != b.columns || a.groups() != b.groups()) {
    return false;
  }
  const auto scales = a.scales.begin() + first * a.groups();
  const auto codes = a.codes.begin() + first * a.columns;
  const auto same = [&](int8_t x, int8_t y) {
    return x == y || (value_of(a.type, x) == 0.0f && value_of(a.type, y) == 0.0f);
  };
  return std::equal(b.scales.begin(), b.scales.end(), scales) &&
         std::equal(b.codes.begin(), b.codes.end(), codes, same);
}

bool same_values(const Tensor& a, const Tensor& b) {
  bool same = a.dtype() == b.dtype() && a.size(0) == b.size(0) && a.size(1) == b.size(1);
  visit_float(a.dtype(), [&]<class T>(T) {
    constexpr size_t kElements = 4096;
    const auto* x = static_cast<const T*>(a.raw());
    const auto* y = static_cast<const T*>(b.raw());
    for (auto left = static_cast<size_t>(a.element_count()); same && left > 0;) {
      const size_t count = std::min(left, kElements);
      if (std::memcmp(x, y, count * sizeof(T)) != 0) {
        for (size_t i = 0; i < count; ++i) {
          // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits, for the sake of NaN
          const bool equal = std::memcmp(x + i, y + i, sizeof(T)) == 0 ||
                             (to_float(x[i]) == 0.0f && to_float(y[i]) == 0.0f);
          same = same && equal;
        }
      }
      x += count;
      y += count;
      left -= count;
    }
  });
  return same;
}

}  // namespace

PlannedEncoding encode_planned(const Tensor& values, const LayerPlan& plan, const PlannedFor& what,
                               ThreadPool& threads) {
  if (what.quantized != nullptr) {
    const std::string_view to = format_of_codes(plan, what, values.dtype());
    if (!to.empty()) {
      return {.encoded = tca_bme::encode_quantized(*what.quantized, to, values.dtype(), threads)};
    }
  }
  if (plan.format == kAutoFormat) {
    return encode_by_rules(values, plan, what, threads);
  }
  if (plan.format == kSmallestFormat) {
    return encode_smallest_planned(values, plan, what, threads);
  }
  const WeightFormat& to = weight_format(plan.format);
  return &to == &dense_format() ? PlannedEncoding{} : encode_in(to, plan, values, threads);
}

// A few rows at a time, since the matrix and its encoding are in memory already.
void require_decodes(const PlannedEncoding& encoding, const Tensor& values, std::string_view name,
                     ThreadPool& threads) {
  constexpr int64_t kRows = 256;  // at borders of tiles, so that nothing is decoded to be sliced
  const EncodedWeight& encoded = *encoding.encoded;
  const WeightFormat& format = weight_format(encoded.format);
  format.validate(encoded);
  for (int64_t row = 0; row < encoded.rows; row += kRows) {
    const Range rows{.begin = row, .count = std::min(kRows, encoded.rows - row)};
    bool same = false;
    if (encoding.rounded) {
      const std::optional<QuantizedMatrix> stored = narrow_rows(encoded, rows, threads);
      same = stored && same_codes(*encoding.rounded, rows.begin, *stored);
    } else {
      const EncodedWeight strip = slice(encoded, Axis::rows, rows, threads);
      const OwnedTensor decoded = format.decode(strip, threads);
      same = same_values(decoded.view, values.rows(rows.begin, rows.count));
    }
    require(same, "the tensor {} in the format {} does not decode to the same values", quote(name),
            encoded.format);
  }
}

}  // namespace sparsellm
