# Writes OUTPUT, a source with the text of INPUT, a file of rules (format_rules.h).
file(READ ${INPUT} text)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#include "sparse/choice/format_rules_text.h"

namespace sparsellm {

const char* const kFormatRulesText = R"rules(@text@)rules";

}  // namespace sparsellm
]] @ONLY)
