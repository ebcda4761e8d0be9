#include "tests/fuzz/random_edits.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/fuzz/model_files.h"

namespace sparsellm::fuzz {
namespace {

using nlohmann::json;

constexpr const char* kValues[] = {"0",
                                   "1",
                                   "-1",
                                   "2",
                                   "8",
                                   "16",
                                   "24",
                                   "40",
                                   "255",
                                   "65536",
                                   "2147483647",
                                   "2147483648",
                                   "4294967296",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "1e308",
                                   "-1e-308",
                                   "0.5",
                                   "null",
                                   "true",
                                   "false",
                                   "[]",
                                   "{}",
                                   "[0]",
                                   "[16,16]",
                                   "[9223372036854775807,9223372036854775807]",
                                   "\"\"",
                                   "\"F16\"",
                                   "\"BF16\"",
                                   "\"F32\"",
                                   "\"U8\"",
                                   "\"I64\"",
                                   "\"tca_bme\"",
                                   "\"tiled_csl\"",
                                   "\"dense\"",
                                   "\"00000000\"",
                                   "\"\\u0000\"",
                                   "\"..\"",
                                   "\"model.safetensors\"",
                                   "\"config.json\"",
                                   "\"LlamaForCausalLM\"",
                                   "\"OPTForCausalLM\"",
                                   "\"gelu\"",
                                   "\"relu\"",
                                   "\"a\""};

constexpr const char* kHex[] = {"00",
                                "01",
                                "7f",
                                "80",
                                "ff",
                                "ffff",
                                "007c",
                                "007e",
                                "00fc",
                                "0000807f",
                                "ffffffffffffffff",
                                "ff7f",
                                "0100",
                                "22",
                                "7d"};

constexpr const char* kNames[] = {"model.safetensors",
                                  "model.safetensors.index.json",
                                  "tokenizer.model",
                                  "tokenizer.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "added_tokens.json",
                                  "special_tokens_map.json",
                                  "generation_config.json",
                                  "pytorch_model.bin",
                                  "sparsellm_manifest.json",
                                  "LICENSE",
                                  "notes.txt",
                                  "model.gguf",
                                  "other.safetensors"};

constexpr const char* kTexts[] = {"",
                                  "{}",
                                  "[]",
                                  "null",
                                  "{\"weight_map\":{}}",
                                  "text",
                                  "#version: 0.2",
                                  "{\"a\":0}",
                                  "{\"a\":{\"a\":[]}}",
                                  "\xff"};

constexpr const char* kTargets[] = {
    "missing", ".", "/dev/zero", "config.json", "model.safetensors", "tokenizer.json", "README.md"};

// What a file holds as JSON, or the header of a safetensors file.
json document_of(std::string_view name, const std::string& bytes) {
  if (!name.ends_with(".safetensors")) {
    return json::parse(bytes, nullptr, false);
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  return json::parse(bytes.substr(sizeof(length), length), nullptr, false);
}

struct Member {
  std::string path;   // a JSON pointer
  std::string inner;  // "KEY " of a document in a text of the metadata; then `path` is of that
};

// Of all files of all bases.
std::vector<std::vector<std::vector<Member>>> all_members() {
  std::vector<std::vector<std::vector<Member>>> members;
  for (const ModelFiles& files : model_bases()) {
    auto& of_base = members.emplace_back();
    for (const auto& [name, bytes] : files) {
      auto& of_file = of_base.emplace_back();
      const json document = document_of(name, bytes);
      if (!document.is_structured()) {
        continue;
      }
      const json leaves = document.flatten();
      for (const auto& [path, leaf] : leaves.items()) {
        of_file.push_back({.path = path, .inner = {}});
        const std::string parent = json::json_pointer(path).parent_pointer().to_string();
        if (of_file.size() % 4 == 0) {
          of_file.push_back({.path = parent, .inner = {}});
        }
        constexpr std::string_view kMetadata = "/__metadata__/";
        if (path.starts_with(kMetadata) && leaf.is_string() &&
            leaf.get<std::string>().starts_with("{")) {
          for (const char* inner : {"/format", "/version", "/dtype", "/shape", "/shape/0",
                                    "/shape/1", "/nnz", "/more"}) {
            of_file.push_back({.path = inner, .inner = path.substr(kMetadata.size()) + " "});
          }
        }
      }
    }
  }
  return members;
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (true) {
    const std::string_view part = text.substr(0, text.find(at));
    parts.emplace_back(part);
    if (part.size() == text.size()) {
      return parts;
    }
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace

std::string RandomEdits::letter(size_t count) {
  return {static_cast<char>('a' + below(count)), ' '};
}

std::string RandomEdits::value() {
  return below(4) == 0 ? std::to_string(static_cast<int64_t>(below(300))) : one_of(kValues);
}

// "FILE PATH ", with what edits it.
std::string RandomEdits::member(size_t base, size_t file) {
  static const auto members = all_members();
  const auto& of_file = members[base][file];
  const std::string name{static_cast<char>('a' + file), ' '};
  if (of_file.empty()) {
    return "U " + name;
  }
  const Member& chosen = of_file[below(of_file.size())];
  if (!chosen.inner.empty()) {
    return "N " + name + chosen.inner + chosen.path + " " + value();
  }
  return below(5) == 0 ? "D " + name + chosen.path : "J " + name + chosen.path + " " + value();
}

std::string RandomEdits::line(size_t base) {
  const size_t files = model_bases()[base].size();
  const std::string file = letter(files);
  constexpr size_t kTensors = 21;  // of Llama; those of others follow
  const auto place = [&] {
    const auto at = static_cast<int64_t>(below(below(2) == 0 ? 16 : 4000));
    return std::to_string(below(3) == 0 ? -at : at) + " ";
  };
  switch (below(20)) {
    case 0:
      return "B " + file + place() + one_of(kHex);
    case 1:
      return "R " + file + place();
    case 2:
      return "T " + file + one_of(kTexts);
    case 3:
      return "U " + file;
    case 4:
      return "L " + file + one_of(kTargets);
    case 5:
      return (below(2) == 0 ? "M " : "P ") + file;
    case 6:
      return std::string("W ") + one_of(kNames) + " " + one_of(kTexts);
    case 7:
      return "C " + file + letter(files) + std::to_string(below(model_bases().size()));
    case 8:
      return "S " + file + letter(kTensors) + letter(kTensors);
    case 9:
      return "X " + file + letter(kTensors) + letter(kTensors);
    case 10:
    case 11:
      return "E " + file + letter(2 * kTensors) + place() + one_of(kHex);
    case 12:
      return "H " + file;
    case 13:
      return "I";
    default:
      return member(base, below(files));
  }
}

std::string RandomEdits::script(std::string_view words) {
  const size_t base = below(model_bases().size());
  std::string text = std::to_string(base);
  const std::vector<std::string> all = split(words, ' ');
  for (size_t count = below(4); count > 0; --count) {
    text += " " + one_of(all);
  }
  for (size_t count = below(4); count > 0; --count) {
    text += "\n" + line(base);
  }
  if (below(3) == 0) {
    for (size_t file = 0; file < model_bases()[base].size(); ++file) {
      text += "\nH " + std::string(1, static_cast<char>('a' + file));
    }
    text += "\nI";
  }
  return text;
}

std::string RandomEdits::changed(std::string_view script, size_t max_bytes) {
  std::vector<std::string> lines = split(script, '\n');
  const size_t base =
      script.empty() ? 0 : static_cast<unsigned char>(script.front() - '0') % model_bases().size();
  const size_t at = 1 + below(lines.size());
  if (at == lines.size() || below(2) == 0) {
    lines.insert(lines.begin() + static_cast<int64_t>(at), line(base));
  } else if (below(2) == 0) {
    lines[at] = line(base);
  } else {
    lines.erase(lines.begin() + static_cast<int64_t>(at));
  }
  std::string text = lines.front();
  for (size_t i = 1; i < lines.size() && text.size() + 1 + lines[i].size() <= max_bytes; ++i) {
    text += "\n" + lines[i];
  }
  return text.substr(0, max_bytes);
}

}  // namespace sparsellm::fuzz
