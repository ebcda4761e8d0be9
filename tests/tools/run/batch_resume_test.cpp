// What sparsellm-run --resume goes on with, and what it refuses: results of another run, and
// damaged ones.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/run/batch_folder.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using Folder = testing::BatchFolder;
using nlohmann::json;
using testing::expect_error;
using testing::lines_of;
using testing::many_prompts;
using testing::Outcome;
using testing::read_file;
using testing::slow_prompt;
using testing::with_meddling;
using testing::write_file;

constexpr char kBeginAnew[] = "--force without --resume begins anew";
const char* const kPrompts =
    "{\"prompt\": \"The king\", \"max_tokens\": 4}\n"
    "{\"prompt\": \"The wolf\", \"max_tokens\": 4}\n"
    "{\"prompt\": \"Once upon\", \"max_tokens\": 4}\n";

// Ends a run when its mark is complete, most likely while the model is loaded.
testing::RunOptions ended_at_its_mark(const Folder& folder, int signal) {
  testing::RunOptions options;
  const std::string before = fs::exists(folder.mark()) ? read_file(folder.mark()) : "";
  options.meanwhile = [&folder, signal, before](pid_t child, const fs::path&) {
    std::string mark = before;
    while (testing::is_running(child) &&
           (mark == before || mark.find("config.json") == std::string::npos)) {
      ::usleep(100);
      mark = fs::exists(folder.mark()) ? read_file(folder.mark()) : before;
    }
    ::kill(child, signal);
  };
  return options;
}

// Leaves a partial file and its mark.
void interrupt(const Folder& folder, const std::vector<std::string>& flags = {}) {
  const Outcome outcome = [&] {
    testing::RunOptions options;
    options.meanwhile = [&](pid_t child, const fs::path&) {
      testing::kill_in_mid_batch(folder, SIGINT, child);
    };
    return folder.batch(flags, options);
  }();
  ASSERT_EQ(outcome.exit_code, 130) << outcome.err;
  ASSERT_TRUE(fs::exists(folder.mark()));
}

std::string output_of(const Folder& folder, std::vector<std::string> flags) {
  flags.emplace_back("--quiet");
  const Outcome outcome = folder.batch(flags);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return read_file(folder.output());
}

TEST(BatchResume, OlderResultsAreNotThoseOfAForcedRunThatDied) {
  const std::string expected = output_of(Folder(kPrompts), {"--seed", "2"});
  const std::vector<std::function<Outcome(const Folder&)>> deaths{
      [](const Folder& f) {  // when the model is there, but before a result
        return f.batch({"--seed", "2", "--force", "-n", "-1", "--kv-memory", "1"});
      },
      [](const Folder& f) {  // before it is there
        return f.batch_of("/no/such/model", {"--seed", "2", "--force"});
      },
      [](const Folder& f) {
        return f.batch({"--seed", "2", "--force"}, ended_at_its_mark(f, SIGKILL));
      },
      [](const Folder& f) {
        return f.batch({"--seed", "2", "--force"}, ended_at_its_mark(f, SIGINT));
      },
  };
  for (const auto& die : deaths) {
    for (const bool has_partial : {false, true}) {
      const Folder folder(kPrompts);
      const std::string older = output_of(folder, {"--seed", "1"});
      ASSERT_NE(older, expected);
      const std::string partial = older.substr(0, older.find('\n') + 1);
      if (has_partial) {
        write_file(folder.partial(), partial);
      }
      const int exit_code = die(folder).exit_code;
      if (read_file(folder.output()) == expected) {
        continue;  // it was faster than the signal
      }
      EXPECT_NE(exit_code, 0);
      EXPECT_EQ(read_file(folder.output()), older);
      EXPECT_TRUE(fs::exists(folder.mark()));
      if (read_file(folder.mark()).find("config.json") != std::string::npos) {
        // Its right to replace the output is not another run's.
        expect_error(folder.batch({"--resume", "--seed", "1"}), 1, "--seed was 2, is 1; ");
      }
      const Outcome resumed = folder.batch({"--resume", "--seed", "2"});
      EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
      EXPECT_EQ(read_file(folder.output()), expected);
      EXPECT_FALSE(fs::exists(folder.partial()));
      EXPECT_FALSE(fs::exists(folder.mark()));
    }
  }
}

TEST(BatchResume, AForcedRunReplacesTheOlderPartialFileWhenItBegins) {
  const Folder folder(many_prompts(8) + slow_prompt());
  const std::string expected = output_of(folder, {"--temp", "0.9"});
  fs::remove(folder.output());
  interrupt(folder, {"--temp", "0.5"});
  const std::string older = read_file(folder.partial());
  EXPECT_EQ(
      folder.batch({"--temp", "0.9", "--force"}, ended_at_its_mark(folder, SIGKILL)).exit_code,
      -SIGKILL);
  if (read_file(folder.partial()) == older) {
    expect_error(folder.batch({"--temp", "0.9"}), 1, "--resume or --force does so");
  }
  expect_error(folder.batch({"--temp", "0.5", "--resume"}), 1, "--temp was 0.9, is 0.5; ");
  EXPECT_EQ(output_of(folder, {"--temp", "0.9", "--resume"}), expected);
}

TEST(BatchResume, RefusesOtherFlags) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> changes{
      {{"--temp", "1"}, "--temp was 0.8, is 1; "},
      {{"--top-k", "3"}, "--top-k was 40, is 3; "},
      {{"--top-p", "0.5"}, "--top-p was 0.95, is 0.5; "},
      {{"--min-p", "0.25"}, "--min-p was 0.05, is 0.25; "},
      {{"--repeat-penalty", "1.5"}, "--repeat-penalty was 1, is 1.5; "},
      {{"--frequency-penalty", "0.5"}, "--frequency-penalty was 0, is 0.5; "},
      {{"--presence-penalty", "0.5"}, "--presence-penalty was 0, is 0.5; "},
      {{"--logit-bias", "7+1"}, "--logit-bias was \"\", is 7+1; "},
      {{"--seed", "5"}, "--seed was -1, is 5; "},
      {{"-n", "5"}, "--predict was -1, is 5; "},
      {{"--ignore-eos"}, "--ignore-eos was false, is true; "},
      {{"--stop", "king"}, "--stop was [], is [\"king\"]; "},
      {{"--stop-token", "9"}, "--stop-token was \"\", is 9; "},
      {{"--samples", "2"}, "--samples was 1, is 2; "},
      {{"--logprobs", "0"}, "--logprobs was none, is 0; "},
      {{"--echo"}, "--echo was false, is true; "},
      {{"--ctx-size", "1000"}, "--ctx-size was 1024, is 1000; "},
      {{"--deterministic"}, "--deterministic was false, is true; "},
      {{"--parse-special"}, "--parse-special was false, is true; "},
      {{"--weight-format", "tca_bme"}, "--weight-format was stored, is tca_bme; "},
      {{"--activation-sparsity", "exact"}, "--activation-sparsity was not set, is "},
      {{"--kv-dtype", "f16"}, "--kv-dtype was not set, is f16; "},
  };
  const std::string prompts = many_prompts(8) + slow_prompt();
  const std::string expected = output_of(Folder(prompts), {});
  const Folder folder(prompts);
  interrupt(folder);
  const std::string partial = read_file(folder.partial());
  const std::string mark = read_file(folder.mark());
  for (const auto& [flags, message] : changes) {
    std::vector<std::string> args = flags;
    args.emplace_back("--resume");
    expect_error(folder.batch(args), 1, "out.jsonl.partial is of another run: " + message);
    expect_error(folder.batch(args), 1, kBeginAnew);
  }
  EXPECT_EQ(read_file(folder.partial()), partial);
  EXPECT_EQ(read_file(folder.mark()), mark);
  // What a run that had too little memory is given; and what comes to the same.
  EXPECT_EQ(
      output_of(folder, {"--resume", "--parallel", "3", "-b", "64", "--kv-memory", "20M",
                         "--no-tune", "--ctx-size", "1024", "--temp", "0.8", "--kv-dtype", "f32"}),
      expected);
}

TEST(BatchResume, RefusesOtherPromptsAndModels) {
  const std::string prompts = many_prompts(8) + slow_prompt();
  const std::string expected = output_of(Folder(prompts), {});
  const Folder folder(prompts);
  interrupt(folder);

  std::string other = prompts;
  other.replace(other.rfind("Alice"), 5, "Alicf");
  write_file(folder.prompts(), other);
  expect_error(folder.batch({"--resume"}), 1, "of another run: the prompts have changed; ");
  write_file(folder.prompts(), prompts);

  const fs::path model = folder.path("model");
  fs::copy(testing::batch_model(), model);
  const std::vector<std::tuple<std::string, std::string, std::string>> changes{
      {"config.json", " ", "the model's config.json has changed; "},
      {"tokenizer_config.json", "\n", "the model's tokenizer_config.json has changed; "},
      {"tokenizer.model", "", "the model's tokenizer.model has changed; "},
      {"generation_config.json", "{\"bos_token_id\": 1}",
       "the model has a new generation_config.json; "},
  };
  for (const auto& [name, appended, message] : changes) {
    const fs::path file = model / name;
    const std::string before = fs::exists(file) ? read_file(file) : "";
    // An unknown field of the protocol buffer, which is passed over.
    const std::string more = appended.empty() ? std::string("\xf8\x3f\x01", 3) : appended;
    write_file(file, before + more);
    expect_error(folder.batch_of(model, {"--resume"}), 1, message);
    before.empty() ? static_cast<void>(fs::remove(file)) : write_file(file, before);
  }
  // A copy of the model, with other times, is the same.
  const Outcome resumed = folder.batch_of(model, {"--resume", "--quiet"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(read_file(folder.output()), expected);
}

TEST(BatchResume, RefusesOtherWeights) {
  const Folder folder(many_prompts(8) + slow_prompt());
  const auto convert = [&](const char* name, const char* sparsity) {
    const Outcome outcome = testing::run_program(
        "sparsellm-convert",
        {"-m", testing::batch_model(), "--output", folder.path(name).string(), "--format", "dense",
         "--prune", "magnitude", "--sparsity", sparsity, "--quiet"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return folder.path(name);
  };
  const fs::path half = convert("half", "0.5");
  const fs::path third = convert("third", "0.3");
  testing::RunOptions options;
  options.meanwhile = [&](pid_t child, const fs::path&) {
    testing::kill_in_mid_batch(folder, SIGINT, child);
  };
  ASSERT_EQ(folder.batch_of(half, {}, options).exit_code, 130);
  expect_error(folder.batch_of(third, {"--resume"}), 1,
               "the model's weights have changed: model.safetensors; ");
  EXPECT_EQ(folder.batch_of(half, {"--resume", "--quiet"}).exit_code, 0);
}

// As an older version left them.
TEST(BatchResume, WithoutAMarkIdsAreCompared) {
  const Folder folder(many_prompts(8) + slow_prompt());
  interrupt(folder);
  fs::remove(folder.mark());
  const Outcome resumed = folder.batch({"--resume", "--temp", "0.5"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find(" 0 done before"), std::string::npos) << resumed.err;
  EXPECT_EQ(lines_of(folder.output()).size(), 9u);
  // What is published has no mark.
  const Outcome again = folder.batch({"--resume", "--temp", "0.4"});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.err.find("is complete already"), std::string::npos) << again.err;
}

TEST(BatchResume, ARunThatEndedAroundTheRenaming) {
  const Folder folder(many_prompts(3) + slow_prompt());
  const std::string expected = output_of(folder, {});
  fs::remove(folder.output());
  expect_error(with_meddling(folder, [&] { write_file(folder.output(), "mine\n"); }), 1,
               "File exists; ");
  ASSERT_EQ(read_file(folder.partial()), expected);
  const std::string mark = read_file(folder.mark());
  EXPECT_EQ(json::parse(mark).at("partial"), "complete");

  // In front of it.
  fs::remove(folder.output());
  EXPECT_EQ(output_of(folder, {"--resume"}), expected);
  // Behind it.
  write_file(folder.mark(), mark);
  const Outcome again = folder.batch({"--resume"});
  EXPECT_NE(again.err.find("is complete already"), std::string::npos) << again.err;
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_FALSE(fs::exists(folder.mark()));
  EXPECT_FALSE(fs::exists(folder.partial()));
  // The output is another's.
  write_file(folder.mark(), mark);
  write_file(folder.output(), expected.substr(0, expected.size() - 2) + " \n");
  expect_error(folder.batch({"--resume"}), 1, "out.jsonl is there already; --force replaces it");
  EXPECT_EQ(output_of(folder, {"--resume", "--force"}), expected);
  // Nothing is left but the mark.
  fs::remove(folder.output());
  write_file(folder.mark(), mark);
  EXPECT_EQ(output_of(folder, {}), expected);
  EXPECT_FALSE(fs::exists(folder.mark()));
}

TEST(BatchResume, MarksThatAreNone) {
  const std::string prompts = many_prompts(8) + slow_prompt();
  const Folder folder(prompts);
  interrupt(folder);
  const std::string partial = read_file(folder.partial());
  const std::string good = read_file(folder.mark());
  const auto with = [&](const char* key, const json& value) {
    json mark = json::parse(good);
    mark[key] = value;
    return mark.dump();
  };
  std::vector<std::string> texts{
      "",
      "{",
      "[]",
      "null",
      "7",
      "{}",
      good.substr(0, good.size() / 2),
      good + "}",
      std::string("\0", 1) + good,
      std::string(1 << 20, '['),
      std::string((16 << 20) + 1, ' '),
      "{\"format\":\"sparsellm tune cache\"}",
      with("format", 1),
      with("version", 2),
      with("version", "1"),
      with("partial", "mine"),
      with("partial", true),
      with("replaces", "yes"),
      with("bytes", -1),
      with("bytes", 1e30),
      with("crc32c", "1234567"),
      with("crc32c", "1234567X"),
      with("crc32c", 7),
      with("run", json::array()),
      with("run", {{"--temp", 0.8}}),
      with("run", {{"--temp", {{"deep", 1}}}}),
      with("unknown", 1),
  };
  for (const std::string& text : texts) {
    write_file(folder.mark(), text);
    expect_error(folder.batch({"--resume"}), 1, "out.jsonl.partial.json");
    expect_error(folder.batch(), 1, kBeginAnew);
  }
  write_file(folder.path("elsewhere"), good);
  const std::vector<std::function<void(const fs::path&)>> others{
      [](const fs::path& path) { fs::create_directory(path); },
      [](const fs::path& path) { fs::create_symlink("nothing", path); },
      [](const fs::path& path) { fs::create_symlink("elsewhere", path); },
      [](const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); },
  };
  for (const auto& make : others) {
    fs::remove(folder.mark());
    make(folder.mark());
    expect_error(folder.batch({"--resume"}), 1, kBeginAnew);
    expect_error(folder.batch(), 1, "cannot read ");
  }
  EXPECT_EQ(read_file(folder.partial()), partial);

  fs::remove(folder.mark());
  fs::create_directory(folder.mark());
  expect_error(folder.batch({"--force"}), 1, "cannot replace ");
  expect_error(folder.batch({"--force"}), 1, "Is a directory; remove it");
  fs::remove(folder.mark());
  fs::create_symlink("elsewhere", folder.mark());
  EXPECT_EQ(folder.batch({"--force", "--quiet"}).exit_code, 0);
  EXPECT_EQ(read_file(folder.path("elsewhere")), good);
  EXPECT_FALSE(fs::is_symlink(folder.mark()));
}

TEST(BatchResume, TheMarkIsNotThePrompts) {
  const Folder folder("");
  for (const char* name : {"out.jsonl.partial.json", "out.jsonl.partial.json.new"}) {
    fs::remove(folder.prompts());
    write_file(folder.path(name), kPrompts);
    fs::create_symlink(name, folder.prompts());
    expect_error(folder.batch({"--force"}), 1,
                 "would be written, but it is the file of the prompts");
    EXPECT_EQ(read_file(folder.path(name)), kPrompts);
    fs::remove(folder.path(name));
  }
}

TEST(BatchResume, APartialFileThatAnotherProcessChangesIsNotPublished) {
  const std::string prompts = many_prompts(5) + slow_prompt();
  const std::vector<std::function<void(const fs::path&)>> changes{
      [](const fs::path& path) { fs::resize_file(path, 0); },
      [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); },
      [](const fs::path& path) { std::ofstream(path, std::ios::app) << "{}\n"; },
      [](const fs::path& path) { std::ofstream(path, std::ios::app) << "x"; },
  };
  for (const auto& change : changes) {
    const Folder folder(prompts);
    const Outcome outcome = with_meddling(folder, [&] { change(folder.partial()); });
    expect_error(outcome, 1, "were written; another program has changed it; 6 of 6 lines are done");
    EXPECT_FALSE(fs::exists(folder.output()));
    expect_error(folder.batch({"--resume"}), 1, kBeginAnew);
  }
}

// Of a file of lines.
using Damage = std::function<void(std::vector<std::string>& lines)>;

struct NamedDamage {
  std::string name;
  Damage damage;
};

void replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) {
    text.replace(at, from.size(), to);
  }
}

std::vector<NamedDamage> structured_damages() {
  std::vector<NamedDamage> damages{
      {"swapped", [](auto& l) { std::swap(l[0], l[1]); }},
      {"swapped far", [](auto& l) { std::swap(l[0], l.back()); }},
      {"doubled", [](auto& l) { l.insert(l.begin(), l[0]); }},
      {"doubled last", [](auto& l) { l.push_back(l.back()); }},
      {"missing first", [](auto& l) { l.erase(l.begin()); }},
      {"missing middle", [](auto& l) { l.erase(l.begin() + 1); }},
      {"empty line", [](auto& l) { l.insert(l.begin() + 1, ""); }},
      {"spaces", [](auto& l) { l.insert(l.begin() + 1, "  "); }},
      {"zeros", [](auto& l) { l[1].assign(l[1].size(), '\0'); }},
      {"joined", [](auto& l) { l[0] += l[1], l.erase(l.begin() + 1); }},
      {"nothing but an id", [](auto& l) { l[0] = R"({"id":"a"})"; }},
      {"an id and a brace", [](auto& l) { l[0] = R"({"id":"a",})"; }},
      {"rubbish after the id", [](auto& l) { l[0] = R"({"id":"a",rubbish}})"; }},
      {"an error of nothing", [](auto& l) { l[0] = R"({"id":"a","error":""})"; }},
      {"an error that is a number", [](auto& l) { l[0] = R"({"id":"a","error":7})"; }},
      {"an error of another line", [](auto& l) { l[0] = R"({"id":"a","error":"line 2: x"})"; }},
      {"a result of a bad line",
       [](auto& l) { l[4] = R"({"id":"e","text":"","token_ids":[2],"finish_reason":"stop"})"; }},
      {"another error of a bad line", [](auto& l) { l[4] = R"({"id":"e","error":"line 5: x"})"; }},
      {"another's text", [](auto& l) { replace(l[0], l[0].substr(10, 20), l[1].substr(10, 20)); }},
      {"another's result", [](auto& l) { l[1] = l[0], replace(l[1], "\"a\"", "\"b\""); }},
  };
  const std::vector<std::pair<const char*, const char*>> edits{
      {"\"text\":\"", "\"text\":\"x"},
      {"\"text\":", "\"text\": "},
      {"\"text\":\"", "\"text\":7,\"\":\""},
      {"\"text\":", "\"txet\":"},
      {"\"text\":", "\"finish_reason\":"},
      {"\"token_ids\":[", "\"token_ids\":[1,"},
      {"\"token_ids\":[", "\"token_ids\":[-"},
      {"\"token_ids\":[", "\"token_ids\":[4096,"},
      {"\"token_ids\":[", "\"token_ids\":[99999999999,"},
      {"\"token_ids\":[", "\"token_ids\":[\"1\","},
      {"\"token_ids\":[", "\"token_ids\":[[],"},
      {"\"token_ids\":[", "\"token_ids\":[1.5,"},
      {"\"token_ids\":[", "\"token_ids\":{"},
      {"\"token_ids\":[", "\"token_ids\":[],\"more\":["},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":\"stop\""},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":\"error\""},
      {"\"finish_reason\":\"length\"", "\"finish_reason\":null"},
      {"\"finish_reason\":\"length\"}", "\"finish_reason\":\"length\""},
      {"\"finish_reason\":\"length\"}", "\"finish_reason\":\"length\"}}"},
      {"\"finish_reason\":\"length\"}", "\"finish_reason\":\"length\"} "},
      {"\"finish_reason\":\"length\"}", "\"finish_reason\":\"length\"}\r"},
      {",\"finish_reason\":\"length\"}", "}"},
      {",\"finish_reason\":\"length\"}", ",\"finish_reason\":\"length\",\"more\":1}"},
      {"{\"id\":\"a\"", "{\"id\":\"a\",\"id\":\"a\""},
      {"{\"id\":\"a\"", "{\"id\":\"A\""},
      {"{\"id\":\"a\"", "{ \"id\":\"a\""},
  };
  for (const auto& [from, to] : edits) {
    damages.push_back({std::string(from) + " -> " + to,
                       [from = from, to = to](auto& l) { replace(l[0], from, to); }});
  }
  for (const size_t kept : {0, 1, 9, 20, 40, 1000}) {
    damages.push_back({"cut " + std::to_string(kept),
                       [kept](auto& l) { l[1].resize(std::min(kept, l[1].size() - 1)); }});
  }
  return damages;
}

std::vector<NamedDamage> flips(int count, const std::string& text) {
  std::vector<NamedDamage> damages;
  std::mt19937 random(20);
  for (int i = 0; i < count; ++i) {
    const size_t at = random() % text.size();
    const char bit = static_cast<char>(1 << random() % 8);
    damages.push_back({"bit of byte " + std::to_string(at), [at, bit](auto& lines) {
                         size_t left = at;
                         for (std::string& line : lines) {
                           if (left < line.size()) {
                             line[left] = static_cast<char>(line[left] ^ bit);
                             return;
                           }
                           left -= std::min(left, line.size() + 1);
                         }
                       }});
  }
  return damages;
}

class Damaged {
 public:
  Damaged(const std::string& prompts, std::vector<std::string> flags)
      : folder_(prompts), flags_(std::move(flags)) {
    expected_ = output_of(Folder(prompts), flags_);
    testing::RunOptions options;
    options.before_exec = [] {
      const struct rlimit limit { .rlim_cur = 3500, .rlim_max = 3500 };
      ::setrlimit(RLIMIT_FSIZE, &limit);
    };
    EXPECT_EQ(folder_.batch(flags_, options).exit_code, 1);
    partial_ = read_file(folder_.partial());
    mark_ = read_file(folder_.mark());
    flags_.insert(flags_.end(), {"--resume", "--quiet"});
  }

  const std::string& partial() const { return partial_; }

  // It is found, or does no harm.
  void check(const NamedDamage& damage, bool with_mark) const {
    std::vector<std::string> lines = lines_of_text();
    damage.damage(lines);
    std::string text;
    for (const std::string& line : lines) {
      text += line + "\n";
    }
    fs::remove(folder_.output());
    write_file(folder_.partial(), text);
    with_mark ? write_file(folder_.mark(), mark_) : static_cast<void>(fs::remove(folder_.mark()));
    const Outcome outcome = folder_.batch(flags_);
    if (outcome.exit_code == 0) {
      EXPECT_EQ(read_file(folder_.output()), expected_) << damage.name;
    } else {
      expect_error(outcome, 1, "out.jsonl.partial");
      EXPECT_EQ(read_file(folder_.partial()), text) << damage.name;
    }
  }

 private:
  std::vector<std::string> lines_of_text() const {
    std::vector<std::string> lines;
    std::istringstream text(partial_);
    for (std::string line; std::getline(text, line);) {
      lines.push_back(line);
    }
    return lines;
  }

  Folder folder_;
  std::vector<std::string> flags_;
  std::string expected_;
  std::string partial_;
  std::string mark_;
};

// The first line, a, ends because of its length; e is in error.
std::string lettered_prompts() {
  std::string prompts;
  for (int i = 0; i < 26; ++i) {
    const std::string id(1, static_cast<char>('a' + i));
    prompts += i == 4 ? R"({"id": "e", "prompt": "x", "temprature": 0})"
                      : json{{"id", id},
                             {"prompt", i % 2 == 0 ? "The king" : "Once \"upon\" a"},
                             {"seed", i},
                             {"ignore_eos", i == 0},
                             {"n", i % 5 == 3 ? 2 : 1},
                             {"max_tokens", 12 + i}}
                            .dump();
    prompts += "\n";
  }
  return prompts;
}

TEST(BatchResume, DamagedLinesAreFound) {
  const Damaged batch(lettered_prompts(), {"--stop", "wolf"});
  std::vector<NamedDamage> damages = structured_damages();
  ASSERT_GE(damages.size(), 50u);
  ASSERT_GT(std::count(batch.partial().begin(), batch.partial().end(), '\n'), 6);
  for (NamedDamage& damage : flips(60, batch.partial())) {
    damages.push_back(std::move(damage));
  }
  for (const NamedDamage& damage : damages) {
    batch.check(damage, true);
    batch.check(damage, false);
  }
  batch.check({"no damage", [](auto&) {}}, true);
  batch.check({"no damage", [](auto&) {}}, false);
}

// Numbers that no line tells to be wrong, where the mark has a checksum.
TEST(BatchResume, DamagedLogProbabilitiesAreFound) {
  const Damaged batch(lettered_prompts(), {"--logprobs", "1", "--echo"});
  ASSERT_GE(std::count(batch.partial().begin(), batch.partial().end(), '\n'), 1);
  for (const NamedDamage& damage : flips(60, batch.partial())) {
    batch.check(damage, true);
  }
}

TEST(BatchResume, DamagedOutputsAreFound) {
  const Folder folder(kPrompts);
  const std::string good = output_of(folder, {"--seed", "1"});
  for (size_t at = 0; at + 1 < good.size(); at += 7) {
    std::string text = good;
    text[at] ^= 1;
    write_file(folder.output(), text);
    expect_error(folder.batch({"--seed", "1", "--resume"}), 1, "out.jsonl");
    EXPECT_EQ(read_file(folder.output()), text);
  }
}

}  // namespace
}  // namespace sparsellm
