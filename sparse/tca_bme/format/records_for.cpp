#include "sparse/tca_bme/format/records_for.h"

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm::tca_bme {

RecordsFor records_for(std::string_view text) {
  for (const RecordsFor goal : {RecordsFor::speed, RecordsFor::size}) {
    if (text == name_of(goal)) {
      return goal;
    }
  }
  require(text.empty(), "records for {}; they are for speed or size", quote(text));
  return RecordsFor::speed;
}

std::string_view name_of(RecordsFor goal) { return goal == RecordsFor::speed ? "speed" : "size"; }

}  // namespace sparsellm::tca_bme
