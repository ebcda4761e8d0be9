#pragma once

#include <string_view>

namespace sparsellm {

// page.html, which GET / answers with, with a fresh number in the place of every "@NONCE@": no
// script or style runs but those that carry it.
extern const std::string_view kPage;

}  // namespace sparsellm
