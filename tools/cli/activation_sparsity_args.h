#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/activation_sparsity.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// --activation-sparsity, --votes and --alpha.
void add_activation_sparsity_args(CLI::App& app, ActivationSparsityRequest& request);

// The first by itself, instead of one that is there: with `random`, random:P is a mode, too, which
// is `exact` with that share.
void replace_mode_arg(CLI::App& app, ActivationSparsityRequest& request,
                      std::optional<double>& random);

// --votes by itself; `default_votes` is what it says of its default.
void add_votes_arg(CLI::App& app, std::optional<Votes>& votes, const std::string& default_votes);

// Of "off", "exact" and "predict"; nothing for "stored" and any other text.
std::optional<ActivationSparsity::Mode> parse_mode(std::string_view name);

// "1.03:20": of the first 20 layers; "1.03": of all. Throws UsageError that names `flag`.
ActivationSparsityRequest::Alpha parse_alpha(const std::string& flag, const std::string& text);

}  // namespace sparsellm
