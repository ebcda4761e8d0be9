// The input is the text of a plan or of an offset function of general_sparse.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/offset_function.h"
#include "sparse/general_sparse/plan.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"

namespace sparsellm::fuzz {
namespace {

using namespace general_sparse;

void check_function(const OffsetFunction& function, std::string_view text) {
  expect(function.to_text() == text, "the text that was read");
  // As it is found again among the offsets themselves.
  constexpr int64_t kMost = 1000;
  std::vector<int64_t> offsets;
  bool fits = true;
  for (int64_t i = 0; i < std::min(function.count(), kMost); ++i) {
    offsets.push_back(function(i));
    fits = fits && offsets.back() >= 0 && offsets.back() <= int64_t{0xffffffff};
  }
  expect(!function.fits_u32() || fits, "offsets of 32 bits");
  if (function.count() <= kMost) {
    expect(function.fits_u32() == fits, "a function of such offsets");
    const OffsetFunction again = OffsetFunction::of(std::span<const int64_t>(offsets));
    expect(!fits || again.form().index() <= function.form().index(), "no dearer form");
    for (int64_t i = 0; i < again.count(); ++i) {
      expect(again(i) == function(i), "the same offsets");
    }
  }
  if (function.fits_u32()) {
    expect(std::ssize(function.table()) == function.bytes(), "a table of so many bytes");
    expect(!function.to_source("offset").empty(), "a source");
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  std::optional<KernelPlan> plan;
  try {
    plan = plan_from(input);
  } catch (const Error&) {
    check_function(OffsetFunction::from_text(input), input);
    return;
  }
  expect(to_text(*plan) == input, "the text that was read");
  expect(!why_invalid(*plan), "a valid plan");
}

}  // namespace sparsellm::fuzz
