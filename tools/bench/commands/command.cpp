#include "tools/bench/commands/command.h"

#include <CLI/CLI.hpp>

namespace sparsellm {

BenchCommand::BenchCommand(CLI::App& app, const std::string& name, const std::string& description)
    : subcommand_(app.add_subcommand(name, description)) {}

bool BenchCommand::parsed() const { return subcommand_->parsed(); }

}  // namespace sparsellm
