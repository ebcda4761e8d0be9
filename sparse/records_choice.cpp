#include "sparse/records_choice.h"

#include <string>

#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {

void check_records(std::string_view records) { tca_bme_format().check_layout(records); }

bool may_be_records(std::string_view format) {
  return format == tca_bme_format().name() || format == kAutoFormat || format == kSmallestFormat;
}

LayoutOptions records_in(std::string_view format, std::string_view records) {
  return {.layout = std::string(format == tca_bme_format().name() ? records : "")};
}

}  // namespace sparsellm
