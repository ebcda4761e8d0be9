// The input is a model of model_bases() and how it is converted, in a line such as
//   3 verify f16 magnitude 0.5 tca_bme
// or with a plan at its end, {"rules": ...}, then the edits that make a directory of the model
// (tests/fuzz/model_edits.h), which is the input of the conversion.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/conversion/convert.h"
#include "kernels/base/mapped_file.h"
#include "models/config.h"
#include "models/linear_layers.h"
#include "models/required_tensors.h"
#include "models/storage/model_file.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"
#include "models/weights/weight_store.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "tests/fuzz/check_undamaged.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/model_edits.h"
#include "tests/fuzz/random_edits.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = 1 << 24;

// What has the name of the output before.
enum class Older : uint8_t { nothing, model, foreign, file };

struct Task {
  size_t base = 0;
  PruneSettings prune = {};
  std::string format = std::string(kAutoFormat);
  std::optional<DType> dtype;
  Older older = Older::nothing;
  bool force = false;
  bool verify = false;
  bool calibrate = false;
  bool dry_run = false;
  int64_t max_shard_bytes = 1 << 20;
  std::string plan;
};

bool is_format(std::string_view word) {
  const auto formats = weight_formats();
  return word == kAutoFormat || word == kSmallestFormat ||
         std::any_of(formats.begin(), formats.end(),
                     [&](const WeightFormat* format) { return format->name() == word; });
}

std::optional<PruneMethod> method_of(std::string_view word) {
  try {
    return parse_prune_method(word);
  } catch (const Error&) {
    return {};
  }
}

void read_word(std::string_view word, Task& task) {
  const std::map<std::string_view, Older> olders = {{"older_model", Older::model},
                                                    {"older_foreign", Older::foreign},
                                                    {"older_file", Older::file}};
  double fraction = 0.0;
  const auto method = method_of(word);
  if (is_format(word)) {
    task.format = word;
  } else if (method) {
    task.prune.method = *method;
  } else if (olders.contains(word)) {
    task.older = olders.at(word);
  } else if (word == "f16" || word == "bf16") {
    task.dtype = word == "f16" ? DType::f16 : DType::bf16;
  } else if (word == "force") {
    task.force = true;
  } else if (word == "verify") {
    task.verify = true;
  } else if (word == "calibrate") {
    task.calibrate = true;
  } else if (word == "dry") {
    task.dry_run = true;
  } else if (word == "matrix") {
    task.prune.scope = PruneScope::matrix;
  } else if (word == "shards") {
    task.max_shard_bytes = 3000;
  } else if (word.starts_with("0.")) {
    std::from_chars(word.data(), word.data() + word.size(), fraction);
    task.prune.sparsity = fraction;
  } else if (!word.empty()) {
    task.base = static_cast<unsigned char>(word.front() - '0') % model_bases().size();
  }
}

Task read_task(std::string_view line) {
  Task task;
  const std::string_view words = line.substr(0, line.find('{'));
  task.plan = line.substr(words.size());
  for (std::string_view left = words; !left.empty();) {
    const std::string_view word = left.substr(0, left.find(' '));
    left.remove_prefix(std::min(word.size() + 1, left.size()));
    read_word(word, task);
  }
  return task;
}

std::map<std::string, std::string> contents(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] =
        entry.is_regular_file() ? read_text_file(entry.path(), kMaxBytes) : "";
  }
  return files;
}

// The folder in which the output is made, with nothing else in it.
class Outputs {
 public:
  explicit Outputs(fs::path folder) : folder_(std::move(folder)) {}

  fs::path output() const { return folder_ / "output"; }

  void begin_with(Older older) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    older_ = older;
    constexpr size_t kConverted = 3;
    switch (older) {
      case Older::nothing:
        break;
      case Older::file:
        std::ofstream(output()) << "a file";
        break;
      case Older::foreign:
      case Older::model: {
        EditedFolder(output()).write(edited_model(
            model_bases()[kConverted], older == Older::foreign ? "W notes.txt of mine" : ""));
        break;
      }
    }
    before_ = older == Older::model || older == Older::foreign
                  ? contents(output())
                  : std::map<std::string, std::string>{};
  }

  // Nothing but the output, which is as it was.
  void check_untouched() const {
    if (older_ == Older::nothing) {
      expect(fs::is_empty(folder_), "nothing of a conversion that was refused");
      return;
    }
    check_alone();
    if (older_ == Older::file) {
      expect(read_text_file(output(), kMaxBytes) == "a file", "the file that was there");
    } else {
      expect(contents(output()) == before_, "the directory that was there");
    }
  }

  void check_alone() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      expect(entry.path() == output(), "nothing beside the output");
    }
  }

 private:
  fs::path folder_;
  Older older_ = Older::nothing;
  std::map<std::string, std::string> before_;
};

// But for the signs of zeros.
bool same_values(const Tensor& a, const Tensor& b) {
  bool same = a.dtype() == b.dtype() && a.element_count() == b.element_count();
  visit_float(a.dtype(), [&]<class T>(T) {
    for (int64_t i = 0; same && i < a.element_count(); ++i) {
      const T x = static_cast<const T*>(a.raw())[i];
      const T y = static_cast<const T*>(b.raw())[i];
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits, for the sake of NaN
      same = std::memcmp(&x, &y, sizeof(T)) == 0 || (to_float(x) == 0.0f && to_float(y) == 0.0f);
    }
  });
  return same;
}

bool is_pruned(const Task& task) {
  return !task.plan.empty() || task.prune.method.kind != PruneMethod::Kind::none;
}

// The output opens, its checksums are right, and it has the model's shapes and, if nothing was to
// change them, values.
void check_output(const fs::path& input, const fs::path& output, const Task& task) {
  const Checkpoint before(input);
  check_undamaged(before, Padding::ignored);  // else damage got new checksums
  const Checkpoint after(output);
  expect(ModelFile(after).verify({}).empty(), "checksums of all files");
  const ModelConfig config = read_model_config(output);
  require_tensors(after, config);
  const WeightStore from(before);
  const WeightStore to(after);
  ThreadPool threads(1);
  std::set<std::string, std::less<>> of_layers;
  for (const LinearLayer& layer : linear_layers(config)) {
    const std::string name = layer.module + ".weight";
    const WeightStore::Stored stored = to.get(name);
    expect(stored.rows == layer.rows && stored.columns == layer.columns, "the shapes of weights");
    const OwnedTensor values = to.dense(name, threads);
    if (!is_pruned(task) && !task.dtype && !always_rounds(task.format)) {
      expect(same_values(from.dense(name, threads).view, values.view), "the values of weights");
    }
    const WeightStore::Stored original = from.get(name);
    of_layers.insert(original.tensors.begin(), original.tensors.end());
  }
  for (const std::string& name : before.names()) {
    if (!of_layers.contains(name) && !from.file().is_padding(name)) {
      const StoredTensor* const now = after.find(name);
      expect(now != nullptr && now->shape == before.find(name)->shape, "all other tensors");
      expect(task.dtype ||
                 std::equal(now->bytes.begin(), now->bytes.end(), before.find(name)->bytes.begin(),
                            before.find(name)->bytes.end()),
             "the values of other tensors");
    }
  }
}

ConvertOptions options_of(const Task& task, const fs::path& input, const fs::path& output,
                          const testing::TempDir& scratch) {
  ConvertOptions options{.input = input,
                         .output = output,
                         .plan = task.plan.empty()
                                     ? SparsityPlan::uniform(task.prune, task.format)
                                     : SparsityPlan::read(scratch.write("plan.json", task.plan)),
                         .dtype = task.dtype,
                         .threads = 1,
                         .replace = task.force,
                         .verify = task.verify,
                         .max_shard_bytes = task.max_shard_bytes};
  if (task.calibrate) {
    constexpr int64_t kTokens = 40;
    options.calibration = {.file = scratch.write("text.txt", "once upon a time there was a king"),
                           .tokens = kTokens};
  }
  return options;
}

}  // namespace

const std::string_view kFirstLineWords =
    "verify force dry calibrate shards matrix older_model older_foreign older_file magnitude "
    "random wanda 2:4 3:5 0.5 0.9 f16 bf16 auto smallest dense tca_bme tiled_csl dense_i8 dense_i4";

void fuzz_one(std::string_view input) {
  static const testing::TempDir scratch;
  static EditedFolder folder(scratch.path() / "input");
  static Outputs outputs(scratch.path() / "outputs");
  const std::string_view line = input.substr(0, input.find('\n'));
  const Task task = read_task(line);
  input.remove_prefix(std::min(line.size() + 1, input.size()));
  folder.write(edited_model(model_bases()[task.base], input));
  outputs.begin_with(task.older);
  try {
    const ConvertOptions options = options_of(task, folder.path(), outputs.output(), scratch);
    if (task.dry_run) {
      inspect_model(options);
      outputs.check_untouched();
      return;
    }
    convert_model(options);
  } catch (const Error&) {
    outputs.check_untouched();
    throw;
  }
  expect(task.older == Older::nothing || (task.older == Older::model && task.force),
         "that only a model is replaced, and only by force");
  outputs.check_alone();
  try {
    check_output(folder.path(), outputs.output(), task);
  } catch (const Error& error) {
    expect(false, error.what());
  }
}

}  // namespace sparsellm::fuzz
