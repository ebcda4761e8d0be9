#include "tools/convert/model_card.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <system_error>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparsellm_version.h"
#include "tools/cli/args.h"
#include "tools/cli/printable.h"
#include "tools/cli/report.h"
#include "tools/convert/convert_report.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// Markdown, also GitHub's, that shows the text as it is.
std::string escaped(std::string_view text) {
  std::string result;
  for (char c : printable(text)) {
    if (std::string_view("\\`*_[]<>#&|~!@:$").find(c) != std::string_view::npos) {
      result += '\\';
    }
    result += c;
  }
  return result;
}

// Without a slash at the end.
fs::path real_path(const fs::path& directory) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(directory, error);
  require(!error, "cannot read {}: {}", directory.string(), error.message());
  return path.has_filename() ? path : path.parent_path();
}

bool is_hub_name(std::string_view name) {
  return !name.empty() && std::isalnum(static_cast<unsigned char>(name.front())) != 0 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

std::string front_matter(const std::string& base, const std::set<std::string>& formats,
                         bool pruned) {
  std::string text = "---\n";
  text += fmt::format("library_name: {}\n", formats.empty() ? "transformers" : "sparsellm");
  text += "pipeline_tag: text-generation\n";
  if (pruned || !formats.empty()) {
    text += "tags:\n";
    text += pruned ? "- pruned\n" : "";
    for (const std::string& format : formats) {
      text += fmt::format("- {}\n", format);
    }
  }
  text += base.empty() ? "" : fmt::format("base_model: {}\n", base);
  return text + "---\n";
}

}  // namespace

std::string hub_id(const fs::path& model) {
  const fs::path path = real_path(model);
  constexpr std::string_view kPrefix = "models--";
  constexpr std::string_view kBetween = "--";
  const fs::path snapshots = path.parent_path();
  const std::string folder = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !folder.starts_with(kPrefix)) {
    return {};
  }
  const std::string_view id = std::string_view(folder).substr(kPrefix.size());
  const size_t end = id.find(kBetween);
  if (end == std::string_view::npos) {
    return {};
  }
  const std::string_view owner = id.substr(0, end);
  const std::string_view name = id.substr(end + kBetween.size());
  return is_hub_name(owner) && is_hub_name(name) ? fmt::format("{}/{}", owner, name) : "";
}

std::string model_card(const fs::path& input, const fs::path& output,
                       const Conversion& conversion) {
  std::set<std::string> methods;
  int64_t elements = 0;
  int64_t nonzeros = 0;
  for (const ConvertedWeight& weight : conversion.weights) {
    methods.insert(weight.method);
    elements += weight.elements();
    nonzeros += weight.nonzeros;
  }
  methods.erase("none");
  const std::set<std::string> formats = conversion.sparse_formats();
  const double zeros =
      100.0 - 100.0 * static_cast<double>(nonzeros) / static_cast<double>(elements);

  std::string text = front_matter(hub_id(input), formats, !methods.empty());
  text += fmt::format("\n# {}\n\n", escaped(real_path(output).filename().string()));
  text += fmt::format("{:.2f} % of the elements of the linear layers are zero; {}.\n", zeros,
                      methods.empty() ? "sparsellm-convert has pruned nothing"
                                      : fmt::format("pruned by {}", fmt::join(methods, " and ")));
  text += fmt::format("The tensors take {:.2f} MiB, as a dense model {:.2f} MiB.\n",
                      mib(conversion.bytes() + conversion.other_bytes),
                      mib(conversion.dense_bytes() + conversion.other_bytes));
  text +=
      formats.empty()
          ? "All of them are dense: whatever runs the model that this one was made of runs it.\n"
          : fmt::format(
                "Weights are stored in the sparse format{} {}, which SparseLLM reads, "
                "and transformers does not.\n",
                formats.size() > 1 ? "s" : "", fmt::join(formats, " and "));
  if (const std::set<std::string> values = conversion.narrow_values(); !values.empty()) {
    text += fmt::format("Some have values of fewer bits: {}.\n", fmt::join(values, " and "));
  }
  text +=
      "\n```\nsparsellm-run -m DIR -p \"Once upon a time\"\n```\n\nDIR is the directory of this ";
  text += fmt::format("file. It was written by sparsellm-convert {}:\n", kVersion);
  ReportWriter report(ReportFormat::md, {}, [&text](std::string_view part) { text += part; });
  report_conversion(conversion, Detail::groups, report);
  report.finish();
  return text;
}

}  // namespace sparsellm
