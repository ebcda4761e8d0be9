// sparsellm-run --prompts as a user meets it: results, errors of lines, and what survives a crash.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/sanitized.h"
#include "tests/tools/run/batch_folder.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Folder = testing::BatchFolder;
using testing::expect_error;
using testing::kill_in_mid_batch;
using testing::lines_of;
using testing::many_prompts;
using testing::Outcome;
using testing::read_file;
using testing::results_of;
using testing::run_model;
using testing::slow_prompt;
using testing::with_meddling;
using testing::write_file;

TEST(BatchRun, EachLineIsWhatARunAloneGives) {
  const std::vector<std::string> prompts{"The king", "Once upon a time there was a king who had",
                                         "\"Oh\", said the wolf,\nand", "Alice"};
  std::string lines;
  for (size_t i = 0; i < prompts.size(); ++i) {
    lines += json{{"prompt", prompts[i]}, {"seed", i}, {"max_tokens", 30 - 7 * i}}.dump() + "\n";
  }
  const Folder folder(lines);
  const Outcome outcome = folder.batch({"--logprobs", "1", "--echo"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* row : {"batch", "overall", "4 of 4 lines; 0 failed"}) {
    EXPECT_NE(outcome.err.find(row), std::string::npos) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder.partial()));
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    json alone =
        json::parse(run_model({"--json", "-p", prompts[i], "--seed", std::to_string(i), "-n",
                               std::to_string(30 - 7 * i), "--logprobs", "1", "--echo"})
                        .out);
    alone["id"] = i + 1;
    EXPECT_EQ(results[i], alone);
  }
}

TEST(BatchRun, AByteOrderMarkIsNoPrompt) {
  const Folder folder("\xef\xbb\xbf\r\n{\"prompt\": \"The king\", \"max_tokens\": 2}\r\n");
  const Outcome outcome = folder.batch();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("1 of 1 lines; 0 failed"), std::string::npos) << outcome.err;
  ASSERT_EQ(results_of(folder.output()).size(), 1u);
  EXPECT_EQ(results_of(folder.output())[0].at("id"), 2);
}

TEST(BatchRun, FieldsOfALineWinOverFlags) {
  const Folder folder(
      "\xef\xbb\xbf{\"prompt\": \"The king\"}\r\n"
      "\r\n"
      "{\"prompt\": \"The king\", \"max_tokens\": 3, \"id\": \"b\"}\r\n"
      "{\"prompt\": \"The king\", \"n\": 2, \"id\": -7}\n"
      "  \t\n"
      "{\"prompt\": \"The king\", \"temperature\": 0, \"echo\": true}\n"
      "{\"prompt\": \"The king\", \"temperature\": 0, \"logit_bias\": {\"601\": 1000}}\n"
      "{\"prompt\": \"The king\", \"logprobs\": 2, \"max_tokens\": 1}\n"
      "{\"prompt_ids\": [1, 354, 601], \"id\": \"ids\"}\n"
      "{\"prompt\": \"The king\", \"stop\": \"'s\", \"temperature\": 0, \"id\": \"last\"}");
  const Outcome outcome = folder.batch({"-n", "6", "--seed", "7", "--quiet"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), 8u);
  const json ids{1, "b", -7, 6, 7, 8, "ids", "last"};
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].at("id"), ids[i]);
    EXPECT_FALSE(results[i].contains("error")) << results[i];
  }
  EXPECT_EQ(results[0].at("token_ids").size(), 6u);
  EXPECT_EQ(results[1].at("token_ids").size(), 3u);
  ASSERT_EQ(results[2].at("samples").size(), 2u);
  EXPECT_FALSE(results[2].contains("text"));
  EXPECT_EQ(results[2].at("samples")[0].at("text"), results[0].at("text"));
  EXPECT_NE(results[2].at("samples")[1].at("text"), results[0].at("text"));
  EXPECT_EQ(results[3].at("prompt"), "The king");
  EXPECT_EQ(results[4].at("token_ids"), json(std::vector<int>(6, 601)));
  ASSERT_EQ(results[5].at("logprobs").size(), 1u);
  EXPECT_EQ(results[5].at("logprobs")[0].at("top_logprobs").size(), 2u);
  EXPECT_EQ(results[6].at("text"), results[0].at("text"));
  EXPECT_EQ(results[7].at("finish_reason"), "stop");
  EXPECT_EQ(results[7].at("text").get<std::string>().find("'s"), std::string::npos);
}

TEST(BatchRun, ALineThatFailsStopsNothing) {
  struct Case {
    std::string line;
    json id;
    std::string error;  // empty: none
  };
  const std::string good = R"({"prompt": "The king", "max_tokens": 2})";
  std::string long_prompt;
  for (int i = 0; i < 400; ++i) {
    long_prompt += "The king said ";
  }
  const std::vector<Case> cases{
      {good, 1, ""},
      {"{\"prompt\": ", nullptr, "line 2: invalid JSON"},
      {std::string("{\"prompt\": \"a\0b\"}", 17), nullptr, "line 3: invalid JSON"},
      {"{\"id\": \"utf8\", \"prompt\": \"\xff\"}", nullptr, "line 4: invalid JSON"},
      {R"({"id": "typo", "prompt": "a", "temprature": 0})", "typo", "unknown field \"temprature\""},
      {R"({"id": "range", "prompt": "a", "top_p": 2})", "range", "top_p 2"},
      {R"({"id": [1], "prompt": "a"})", nullptr, "line 7: id is an array"},
      {R"({"id": "long", "max_tokens": 1, "prompt": ")" + long_prompt + "\"}", "long",
       "but the context holds 1024"},
      {R"({"id": "kv", "prompt": "a", "max_tokens": 500})", "kv", "does not fit the KV cache"},
      {R"({"id": "empty", "prompt_ids": []})", "empty", "the prompt is empty"},
      {R"({"id": "token", "prompt_ids": [4096]})", "token", "token id 4096"},
      {"{\"stop\": " + std::string(100000, '['), nullptr, "nested more than"},
      {good, 13, ""},
      {R"({"id": "numbers", "prompt": "x", "n": 1024, "logprobs": 100, "max_tokens": 500})",
       "numbers", "line 14: 1024 samples of up to 500 tokens"},
  };
  std::string lines;
  for (const Case& c : cases) {
    lines += c.line + "\n";
  }
  const Folder folder(lines);
  const Outcome outcome = folder.batch({"--quiet", "--kv-memory", "4M"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(outcome.err.starts_with("sparsellm-run: 12 of 14 lines failed; ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(results[i].at("id"), cases[i].id);
    EXPECT_EQ(results[i].contains("text"), cases[i].error.empty());
    EXPECT_EQ(results[i].contains("error"), !cases[i].error.empty());
    const std::string error = results[i].value("error", "");
    EXPECT_NE(error.find(cases[i].error), std::string::npos) << error;
    EXPECT_LT(error.size(), 300u);
  }
}

void limit_data(int64_t mib) {
  const auto bytes = static_cast<rlim_t>(mib) << 20;
  const struct rlimit limit { .rlim_cur = bytes, .rlim_max = bytes };
  ::setrlimit(RLIMIT_DATA, &limit);
}

// Options of a run that has `mib` of memory besides what the program's libraries take (CUDA's take
// much).
testing::RunOptions with_memory(int64_t mib) {
  int64_t least = 0;  // too little to start
  int64_t most = 512;
  while (most - least > 4) {
    const int64_t middle = (least + most) / 2;
    testing::RunOptions options;
    options.before_exec = [middle] { limit_data(middle); };
    (testing::run_program("sparsellm-run", {"--help"}, options).exit_code == 0 ? most : least) =
        middle;
  }
  testing::RunOptions options;
  options.before_exec = [limit = most + mib] { limit_data(limit); };
  return options;
}

TEST(BatchRun, AHugeLineIsNotHeldInMemory) {
  const Folder folder("{\"prompt\": \"");
  fs::resize_file(folder.prompts(), 200 << 20);
  std::ofstream(folder.prompts(), std::ios::app | std::ios::binary)
      << "\n{\"prompt\": \"The king\", \"max_tokens\": 2}\n";
  // Sanitizers reserve terabytes of address space.
  const testing::RunOptions options =
      testing::kSanitized ? testing::RunOptions() : with_memory(185);
  const Outcome outcome = folder.batch({"--quiet", "--parallel", "1"}, options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0], (json{{"id", nullptr}, {"error", "line 1: longer than 67108864 bytes"}}));
  EXPECT_EQ(results[1].at("token_ids").size(), 2u);
}

TEST(BatchRun, APromptThatCannotFitIsNotTokenized) {
  const Folder folder("{\"prompt\": \"" + std::string(60 << 20, 'a') +
                      "\"}\n{\"prompt\": \"The king\", \"max_tokens\": 2}\n");
  // Tokenizing it took 14 GB.
  const testing::RunOptions options =
      testing::kSanitized ? testing::RunOptions() : with_memory(500);
  const Outcome outcome = folder.batch({"--quiet", "--parallel", "1"}, options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), 2u);
  const std::string error = results[0].value("error", "");
  EXPECT_TRUE(error.starts_with("line 1: the prompt has 62914560 bytes, which are at least "))
      << error;
  EXPECT_TRUE(error.ends_with(" tokens, but the context holds 1024")) << error;
  EXPECT_EQ(results[1].at("token_ids").size(), 2u);
}

TEST(BatchRun, ALineThatThereIsNoMemoryForStopsNothing) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers reserve terabytes of address space";
  }
  const Folder folder("{\"id\": 7, \"prompt\": \"" + std::string(40 << 20, 'a') +
                      "\"}\n{\"prompt\": \"The king\", \"max_tokens\": 2}\n");
  const Outcome outcome = folder.batch({"--quiet", "--parallel", "1"}, with_memory(185));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].at("error"), "line 1: out of memory");
  EXPECT_EQ(results[1].at("token_ids").size(), 2u);
}

TEST(BatchRun, PreemptionsChangeNothing) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    lines +=
        json{{"prompt", "The king"}, {"seed", i}, {"ignore_eos", true}, {"max_tokens", 60}}.dump() +
        "\n";
  }
  const Folder folder(lines);
  ASSERT_EQ(folder.batch().exit_code, 0);
  const std::string expected = read_file(folder.output());
  const Outcome tight = folder.batch({"--force", "--kv-memory", "2M", "--parallel", "16"});
  EXPECT_EQ(tight.exit_code, 0) << tight.err;
  EXPECT_NE(tight.err.find("\npreempt "), std::string::npos) << tight.err;
  EXPECT_EQ(read_file(folder.output()), expected);
}

TEST(BatchRun, NoticesThatThePromptsChange) {
  const std::string prompts = many_prompts(5) + slow_prompt() + "\n";
  const std::vector<std::function<void(const fs::path&)>> changes{
      [](const fs::path& path) { fs::resize_file(path, 10); },
      [](const fs::path& path) { std::ofstream(path, std::ios::app) << "{\"prompt\": \"x\"}\n"; },
      [&](const fs::path& path) { write_file(path, prompts); },  // the same again: who knows
  };
  for (const auto& change : changes) {
    const Folder folder(prompts);
    const Outcome outcome = with_meddling(folder, [&] { change(folder.prompts()); });
    expect_error(outcome, 1, "in.jsonl has changed while it was read; ");
    EXPECT_FALSE(fs::exists(folder.output()));
    EXPECT_TRUE(read_file(folder.partial()).ends_with("}\n"));
  }
}

TEST(BatchRun, NoticesThatItsFilesChange) {
  const std::string prompts = many_prompts(5) + slow_prompt();
  {
    const Folder folder(prompts);
    const Outcome outcome = with_meddling(folder, [&] { fs::remove(folder.partial()); });
    expect_error(outcome, 1, "out.jsonl: No such file or directory; 6 of 6 lines are done");
  }
  {
    const Folder folder(prompts);
    const Outcome outcome = with_meddling(folder, [&] {
      fs::remove(folder.partial());
      write_file(folder.partial(), "mine\n");
    });
    expect_error(outcome, 1, "another file has taken its place; ");
    EXPECT_EQ(read_file(folder.partial()), "mine\n");
    EXPECT_FALSE(fs::exists(folder.output()));
  }
  {
    const Folder folder(prompts);
    const Outcome outcome = with_meddling(folder, [&] { write_file(folder.output(), "mine\n"); });
    expect_error(outcome, 1, "out.jsonl: File exists; ");
    EXPECT_EQ(read_file(folder.output()), "mine\n");
    EXPECT_EQ(folder.batch({"--resume", "--force", "--quiet"}).exit_code, 0);
    EXPECT_EQ(results_of(folder.output()).size(), 6u);
  }
}

TEST(BatchRun, ThePartialFileIsOnlyTouchedWhenTheModelIsThere) {
  const Folder folder("{\"prompt\": \"x\", \"max_tokens\": 1}\n");
  const std::vector<std::string> no_model{"-m",        "/no/such/model",
                                          "--prompts", folder.prompts().string(),
                                          "--output",  folder.output().string()};
  for (const std::string text : {"{\"id\":1,\"text\":\"\"}\n{\"id", ""}) {
    for (const char* flag : {"--force", "--resume"}) {
      write_file(folder.partial(), text);
      std::vector<std::string> args = no_model;
      args.push_back(flag);
      expect_error(testing::run_program("sparsellm-run", args), 1, "/no/such/model");
      ASSERT_TRUE(fs::exists(folder.partial()));
      EXPECT_EQ(read_file(folder.partial()), text);
    }
  }
}

TEST(BatchRun, ClosedStandardStreams) {
  const Folder folder("{\"prompt\": \"x\", \"max_tokens\": 1}\n{\"prompt\": 1}\n");
  testing::RunOptions options;
  options.before_exec = [] {
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
  };
  EXPECT_EQ(folder.batch({"-v"}, options).exit_code, 0);
  EXPECT_EQ(results_of(folder.output()).size(), 2u);
}

TEST(BatchRun, FlagsThatAreWrongForTheModel) {
  struct Case {
    std::vector<std::string> flags;
    std::string message;
  };
  std::vector<std::string> many_stops;
  for (int i = 0; i < 65; ++i) {
    many_stops.insert(many_stops.end(), {"--stop", "x"});
  }
  const std::vector<Case> cases{
      {{"--logit-bias", "99999+1"}, "token id of a logit bias 99999 is outside the vocabulary"},
      {{"--stop-token", "4096"}, "stop token id 4096 is outside the vocabulary"},
      {{"--stop", std::string(1025, 'x')}, "a stop text has 1025 bytes"},
      {many_stops, "65 stop texts"},
      {{"-n", "500", "--kv-memory", "1M"}, "does not fit the KV cache"},
  };
  const Folder folder("{\"prompt\": \"x\", \"max_tokens\": 1}\n");
  write_file(folder.partial(), "older");
  for (const Case& c : cases) {
    std::vector<std::string> args = c.flags;
    args.push_back("--force");
    expect_error(folder.batch(args), 1, c.message);
    EXPECT_EQ(read_file(folder.partial()), "older");
  }
}

TEST(BatchRun, VerboseSaysWhereItGoesOn) {
  const Folder folder(
      "{\"prompt\": \"x\", \"max_tokens\": 1}\n{\"prompt\": \"y\", \"max_tokens\": 1}\n");
  ASSERT_EQ(folder.batch().exit_code, 0);
  write_file(folder.partial(), lines_of(folder.output()).front() + "\n");
  fs::remove(folder.output());
  const Outcome outcome = folder.batch({"--resume", "-v"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("info: 2 prompts, of which 1 have their results in"),
            std::string::npos)
      << outcome.err;
}

TEST(BatchRun, ResumesAfterAKill) {
  const Folder undisturbed(many_prompts(19) + slow_prompt());
  ASSERT_EQ(undisturbed.batch({"--parallel", "4"}).exit_code, 0);
  const Folder folder(many_prompts(19) + slow_prompt());
  testing::RunOptions options;
  options.meanwhile = [&](pid_t child, const fs::path&) {
    kill_in_mid_batch(folder, SIGKILL, child);
  };
  EXPECT_EQ(folder.batch({"--parallel", "4"}, options).exit_code, -SIGKILL);
  EXPECT_FALSE(fs::exists(folder.output()));
  EXPECT_LT(lines_of(folder.partial()).size(), 20u);
  // As if the last write had not been finished.
  std::ofstream(folder.partial(), std::ios::app) << "{\"id\":\"line";

  expect_error(folder.batch(), 1, "--resume goes on with it, --force begins anew");
  const Outcome resumed = folder.batch({"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find(" 0 done before"), std::string::npos) << resumed.err;
  EXPECT_EQ(read_file(folder.output()), read_file(undisturbed.output()));
  EXPECT_FALSE(fs::exists(folder.partial()));

  const Outcome again = folder.batch({"--resume"});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.err.find("is complete already"), std::string::npos) << again.err;
}

TEST(BatchRun, InterruptSaysHowToGoOn) {
  const Folder folder(many_prompts(19) + slow_prompt());
  testing::RunOptions options;
  options.meanwhile = [&](pid_t child, const fs::path&) {
    kill_in_mid_batch(folder, SIGINT, child);
  };
  const Outcome outcome = folder.batch({"--parallel", "2"}, options);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_NE(outcome.err.find("--resume goes on"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder.output()));
  EXPECT_TRUE(read_file(folder.partial()).ends_with("}\n"));
  EXPECT_EQ(folder.batch({"--resume"}).exit_code, 0);
  EXPECT_EQ(results_of(folder.output()).size(), 20u);
}

TEST(BatchRun, AFullDiskLeavesWholeLines) {
  const Folder folder(many_prompts(30));
  testing::RunOptions options;
  options.before_exec = [] {
    const struct rlimit limit { .rlim_cur = 2000, .rlim_max = 2000 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome = folder.batch({}, options);
  expect_error(outcome, 1, "out.jsonl.partial: File too large; ");
  EXPECT_FALSE(fs::exists(folder.output()));
  const std::string partial = read_file(folder.partial());
  EXPECT_GT(partial.size(), 1000u);
  EXPECT_TRUE(partial.ends_with("}\n"));
  EXPECT_EQ(folder.batch({"--resume", "--quiet"}).exit_code, 0);
  const Folder undisturbed(many_prompts(30));
  undisturbed.batch();
  EXPECT_EQ(read_file(folder.output()), read_file(undisturbed.output()));
}

TEST(BatchRun, ResumeWantsTheSamePrompts) {
  const Folder folder(
      "{\"id\": \"a\", \"prompt\": \"x\", \"max_tokens\": 1}\n"
      "{\"id\": \"b\", \"prompt\": \"x\", \"max_tokens\": 1}\n");
  ASSERT_EQ(folder.batch().exit_code, 0);
  const std::vector<std::string> lines = lines_of(folder.output());
  const std::string first = lines[0] + "\n";
  const std::string second = lines[1] + "\n";
  fs::remove(folder.output());
  write_file(folder.partial(), second);
  expect_error(folder.batch({"--resume"}), 1,
               "in.jsonl, which has the id \"a\"; --force without --resume begins anew");
  write_file(folder.partial(), first + second + "{}\n");
  expect_error(folder.batch({"--resume"}), 1, "has more lines than");
  write_file(folder.partial(), "{\"id\":\"a\",\"te\n" + second);
  expect_error(folder.batch({"--resume"}), 1, "line 1 of ");
  expect_error(folder.batch({"--resume"}), 1, "is damaged; --force without --resume begins anew");
  fs::remove(folder.partial());
  write_file(folder.output(), first);
  expect_error(folder.batch({"--resume"}), 1, "has 1 lines, but");
  write_file(folder.partial(), first);
  expect_error(folder.batch({"--resume"}), 1, "are both there");
}

TEST(BatchRun, ForceReplaces) {
  const Folder folder("{\"prompt\": \"x\", \"max_tokens\": 1}\n");
  std::ofstream(folder.output()) << "old";
  expect_error(folder.batch(), 1, "is there already; --force replaces it");
  EXPECT_EQ(read_file(folder.output()), "old");
  std::ofstream(folder.partial()) << "older";
  // Where the new results go is a link; the file that it points to is replaced, not the link.
  fs::rename(folder.output(), folder.path("elsewhere.jsonl"));
  fs::rename(folder.partial(), folder.path("elsewhere.jsonl.partial"));
  fs::create_symlink("elsewhere.jsonl", folder.output());
  EXPECT_EQ(folder.batch({"--force"}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(folder.output()));
  EXPECT_EQ(results_of(folder.path("elsewhere.jsonl")).size(), 1u);
  EXPECT_FALSE(fs::exists(folder.path("elsewhere.jsonl.partial")));
}

TEST(BatchRun, UnreadableIdIsNotReused) {
  const Folder folder(
      "{\"id\": 2, \"prompt\": \"x\", \"max_tokens\": 1}\n"
      "{\"prompt\": \n"
      "{\"id\": {}}\n");
  ASSERT_EQ(folder.batch({"--quiet"}).exit_code, 0);
  const std::vector<json> results = results_of(folder.output());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].at("id"), 2);
  EXPECT_EQ(results[1].at("id"), nullptr);
  EXPECT_EQ(results[2].at("id"), nullptr);
  fs::rename(folder.output(), folder.partial());
  const Outcome resumed = folder.batch({"--resume"});
  EXPECT_NE(resumed.err.find("2 failed, 3 done before"), std::string::npos) << resumed.err;
}

TEST(BatchRun, TwoProcessesKeepApart) {
  const Folder folder("{\"prompt\": \"x\", \"max_tokens\": 1}\n");
  std::ofstream(folder.partial()) << "";
  const int file = ::open(folder.partial().c_str(), O_RDWR);
  ASSERT_EQ(::flock(file, LOCK_EX | LOCK_NB), 0);
  for (const char* flag : {"--resume", "--force"}) {
    expect_error(folder.batch({flag}), 1, "another process is writing");
  }
  ::close(file);
  EXPECT_EQ(folder.batch({"--resume"}).exit_code, 0);
}

TEST(BatchRun, FilesThatCannotBe) {
  struct Case {
    std::string prompts;
    std::string output;
    std::string message;
  };
  const Folder folder("{\"prompt\": \"x\", \"id\": 3}\n\n{\"prompt\": \"y\"}\n");
  const Folder good("{\"prompt\": \"x\"}\n");
  const Folder empty("\n \n");
  fs::create_symlink("nothing", good.path("dangling"));
  fs::create_directory(good.path("folder"));
  fs::create_directory(good.path("x.partial"));
  const std::string in = good.prompts().string();
  // The partial file of what the output points to.
  const Folder same("");
  fs::rename(same.prompts(), same.path("real.partial"));
  write_file(same.path("real.partial"), "{\"prompt\": \"x\"}\n");
  write_file(same.path("real"), "");
  fs::create_symlink("real", same.output());
  const Folder numbers("{\"id\": 2, \"prompt\": \"x\"}\n{\"prompt\": \"x\"}\n");
  const std::vector<Case> cases{
      {same.path("real.partial"), same.output(), "real.partial would be written, but it is the"},
      {numbers.prompts(), numbers.output(), "lines 1 and 2 have the same id 2"},
      {folder.prompts(), folder.output(), "lines 1 and 3 have the same id 3"},
      {empty.prompts(), empty.output(), "holds no prompts"},
      {"/no/such/file", good.output(), "/no/such/file"},
      {good.path("folder"), good.output(), "not a regular file"},
      {in, in, "is the file of the prompts"},
      {in, "/no/such/folder/out", "cannot write /no/such/folder/out.partial"},
      {in, good.path("folder"), "a folder"},
      {in, good.path("folder").string() + "/", "not the name of a file"},
      {in, good.path("dangling"), "a link to nothing"},
      {in, good.path("x"), "x.partial: Is a directory"},
      {in, "/dev/null", "not a regular file"},
  };
  for (const Case& c : cases) {
    // That the model is not there is found later.
    expect_error(
        testing::run_program("sparsellm-run", {"-m", "/no/such/model", "--prompts", c.prompts,
                                               "--output", c.output, "--force"}),
        1, c.message);
  }
  EXPECT_EQ(read_file(same.path("real.partial")), "{\"prompt\": \"x\"}\n");
  for (const Folder* f : {&folder, &good, &empty}) {
    EXPECT_FALSE(fs::exists(f->output()));
    EXPECT_FALSE(fs::exists(f->partial()));
  }
}

}  // namespace
}  // namespace sparsellm
