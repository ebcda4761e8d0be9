#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/bench/suite/suite_group.h"
#include "tools/bench/suite/suite_lists.h"

// Members of a group. All throw Error that names the key.
namespace sparsellm {

// That one of `all` which a text names.
template <class T>
T one_of_suite(const JsonValue& value, std::initializer_list<T> all) {
  std::string names;
  for (const T& each : all) {
    if (value.string() == name_of(each)) {
      return each;
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(each));
  }
  value.refuse("expected one of " + names);
}

// What `read` makes of each text of a list.
template <class Read>
auto read_suite_list(const JsonValue& list, Read&& read) {
  std::vector<decltype(read(list))> all;
  const auto count = std::ssize(read_suite_texts(list));
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(read(list.element(i)));
  }
  return all;
}

std::vector<std::string> read_suite_formats(const JsonValue& list, SuiteGroup::Kind kind);

// Of the keys plans, sparsities and patterns. `formats` are the group's: dense alone has none.
std::vector<SuiteZeros> read_suite_zeros(const JsonValue& group,
                                         const std::vector<std::string>& formats,
                                         SuiteModels& models);

// Off alone if there is no such key.
std::vector<SuiteActivation> read_suite_activations(const JsonValue& list);

}  // namespace sparsellm
