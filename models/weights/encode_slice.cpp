#include "models/weights/encode_slice.h"

#include <algorithm>

#include "sparse/load_context.h"
#include "sparse/narrow_encoding.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// The columns to read for these: all that share a scale with one of them.
Range with_whole_scales(const ScaleGroups& scales, Range columns, int64_t all) {
  if (scales.whole_rows) {
    return {.begin = 0, .count = all};
  }
  const int64_t begin = columns.begin / scales.columns * scales.columns;
  const int64_t end = columns.begin + columns.count;
  const int64_t past = end % scales.columns == 0 ? 0 : scales.columns - end % scales.columns;
  return {.begin = begin, .count = std::min(end + past, all) - begin};
}

bool is_stored_narrow(const WeightStore& store, const WeightStore::Stored& stored) {
  return stored.form == WeightStore::Form::encoded &&
         has_narrow_values(store.unchecked(stored.name));
}

// Whether it is stored with narrow values, and with these if any are wanted.
bool has_stored_values(const WeightStore& store, const WeightStore::Stored& stored,
                       std::string_view values) {
  return is_stored_narrow(store, stored) &&
         (values.empty() || naming_errors(store.file().describe(stored.name), [&] {
            return type_of_values(store.unchecked(stored.name)) == values;
          }));
}

}  // namespace

bool is_cut_on_host(const WeightToEncode& weight) {
  const WeightStore::Stored stored = weight.store.get(weight.name);
  return weight.slice && is_stored_narrow(weight.store, stored) &&
         naming_errors(weight.store.file().describe(stored.name), [&] {
           return !weight_format(stored.format)
                       .at_borders(weight.store.unchecked(stored.name), *weight.slice);
         });
}

bool is_rounded_on_host(const WeightToEncode& weight, const LayoutOptions& options) {
  const std::optional<ScaleGroups> scales = scale_groups(options.layout);
  if (!scales) {
    return false;
  }
  const WeightStore::Stored stored = weight.store.get(weight.name);
  if (stored.form == WeightStore::Form::quantized || is_stored_narrow(weight.store, stored)) {
    return true;
  }
  return weight.slice && with_whole_scales(*scales, weight.slice->columns, stored.columns).count >
                             weight.slice->columns.count;
}

EncodedWeight encode_slice(const WeightToEncode& weight, const WeightFormat& to, DType dtype,
                           const LayoutOptions& options, ThreadPool& threads) {
  const std::optional<Slice>& slice = weight.slice;
  const WeightStore::Stored stored = weight.store.get(weight.name);
  if (slice && stored.format == to.name() && stored.dtype == dtype &&
      has_stored_values(weight.store, stored, options.layout)) {
    EncodedWeight whole = weight.store.unchecked(weight.name);
    return to.read_slice({.weight = &whole,
                          .name = weight.store.file().describe(stored.name),
                          .file = stored.file,
                          .slice = slice},
                         threads);
  }
  const std::optional<ScaleGroups> scales = scale_groups(options.layout);
  if (!slice || !scales) {
    return weight.store.encode(weight.name, to, dtype, threads, slice, options);
  }
  const Range read = with_whole_scales(*scales, slice->columns, stored.columns);
  EncodedWeight encoded = weight.store.encode(weight.name, to, dtype, threads,
                                              Slice{.rows = slice->rows, .columns = read}, options);
  if (slice->columns.count == read.count) {
    return encoded;
  }
  const Range wanted{.begin = slice->columns.begin - read.begin, .count = slice->columns.count};
  return naming_errors(std::string(weight.name),
                       [&] { return sparsellm::slice(encoded, Axis::columns, wanted, threads); });
}

}  // namespace sparsellm
