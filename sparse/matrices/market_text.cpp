#include "sparse/matrices/market_text.h"

#include "kernels/base/json_reader.h"

namespace sparsellm {

std::string MarketText::quoted_word() { return quote(word()); }

}  // namespace sparsellm
