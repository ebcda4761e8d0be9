#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace sparsellm::testing {

// The text of the Error that `body` throws; empty if it returns.
template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The message has the fragment, and is one line of a bounded length.
inline void expect_message(const std::string& message, std::string_view fragment) {
  EXPECT_NE(message, "") << "there was no error; expected: " << fragment;
  EXPECT_NE(message.find(fragment), std::string::npos)
      << "message:  " << message << "\nexpected: " << fragment;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u);
}

}  // namespace sparsellm::testing
