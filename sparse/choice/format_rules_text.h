#pragma once

namespace sparsellm {

// The text of the rules that a build has in it, configs/format-rules/h200.json.
extern const char* const kFormatRulesText;

}  // namespace sparsellm
