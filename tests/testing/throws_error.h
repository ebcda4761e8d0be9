#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "kernels/base/error.h"

namespace sparsellm::testing {

// Whether body() throws an Error of one line whose text contains `part`.
template <class Body>
::testing::AssertionResult throws_error(Body&& body, std::string_view part) {
  try {
    body();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    if (text.find(part) == std::string_view::npos) {
      return ::testing::AssertionFailure() << "'" << text << "' does not contain '" << part << "'";
    }
    if (text.find('\n') != std::string_view::npos) {
      return ::testing::AssertionFailure() << "'" << text << "' is more than one line";
    }
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no Error was thrown; expected '" << part << "'";
}

}  // namespace sparsellm::testing
