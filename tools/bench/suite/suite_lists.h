#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/json_reader.h"

// Parts of a suite's file. All throw Error that names the key.
namespace sparsellm {

// Of any list in a suite.
inline constexpr int64_t kMaxSuiteList = 256;

// Refuses what is not an array of 1 to kMaxSuiteList elements.
void require_suite_list(const JsonValue& list);

// Lists in which nothing comes twice.
std::vector<std::string> read_suite_texts(const JsonValue& list);
std::vector<int64_t> read_suite_integers(const JsonValue& list, int64_t min, int64_t max);
std::vector<double> read_suite_numbers(const JsonValue& list, double max);  // from 0 on

// In double precision, in which 0.8 is written as 0.8 again.
double read_suite_number(const JsonValue& value, double max);  // from 0 on

// One line for tables and pictures: neither empty nor long, and without control characters.
std::string read_suite_text(const JsonValue& value);

}  // namespace sparsellm
