# Writes OUTPUT, a source with the texts of HEADERS (a list), one after the other, for kernels that
# are compiled when the program runs (plan_source.h).
set(texts "")
foreach(header IN LISTS HEADERS)
  file(READ ${header} text)
  string(REPLACE "#pragma once\n" "" text "${text}")
  string(APPEND texts "${text}")
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#include "sparse/general_sparse/plan_headers.h"

namespace sparsellm::general_sparse {

const char* const kPlanHeaders = R"headers(@texts@)headers";

}  // namespace sparsellm::general_sparse
]] @ONLY)
