#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "tools/contender.h"
#include "tools/product_meter.h"

namespace sparsellm {

// What multiplies by a weight with all of its zeros: on CUDA "cublas", "cublaslt" and "dense", the
// engine's own; on the CPU the latter alone.
std::vector<std::string_view> dense_contenders(Device device);

// One of these, or a weight in a format of sparse/registry.h. Throws Error.
std::unique_ptr<Contender> make_dense_or_format_contender(std::string_view name,
                                                          const ContenderInput& input);

// Least times by something, each the least of all that were given.
template <class Key>
void keep_least(std::map<Key, double>& times, const Key& key, double time) {
  const auto [known, first] = times.emplace(key, time);
  if (!first && time < known->second) {
    known->second = time;
  }
}

}  // namespace sparsellm
