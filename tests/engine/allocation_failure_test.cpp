// The engine when memory runs out at any moment.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/delivery.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/stop_matcher.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/parallel.h"
#include "models/config.h"
#include "models/storage/safetensors.h"
#include "tests/testing/failing_allocations.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tokenizer/tokenizer.h"
#include "tools/run/prompt.h"

namespace sparsellm {
namespace {

using testing::Armed;
using testing::Disarmed;
using testing::plan;

// What was heard of a sample.
struct Heard {
  std::vector<int32_t> tokens;
  std::string text;
  size_t log_probs = 0;
  size_t prompt_log_probs = 0;
  std::vector<FinishReason> finish;

  friend bool operator==(const Heard&, const Heard&) = default;

  void add(const TokenEvent& event) {
    if (event.token) {
      tokens.push_back(*event.token);
    }
    text += event.text;
    log_probs += event.log_probs != nullptr ? 1 : 0;
    prompt_log_probs += event.prompt_log_probs.size();
    if (event.finish) {
      finish.push_back(*event.finish);
      EXPECT_EQ(event.error.empty(), *event.finish != FinishReason::error);
    }
  }
};

// The requests of a run and what became of them.
struct Outcome {
  std::vector<int64_t> ids;                           // 0: refused
  std::map<std::pair<size_t, int32_t>, Heard> heard;  // by index and sample
};

std::vector<Request> mixed_requests() {
  const auto request = [](int64_t prompt_length, int64_t max_tokens) {
    Request made;
    for (int64_t i = 0; i < prompt_length; ++i) {
      made.prompt.push_back(static_cast<int32_t>(10 + 7 * i % 90));
    }
    made.max_tokens = max_tokens;
    made.ignore_eos = true;
    made.seed = 5;
    return made;
  };
  std::vector<Request> requests{request(15, 5), request(31, 4), request(20, 3), request(36, 2)};
  requests[0].stop = {"never said such a thing at all"};
  requests[1].samples = 3;
  requests[1].sampling.temperature = 1.0f;
  requests[2].log_probs = 2;
  requests[2].prompt_log_probs = true;
  requests[2].sampling.repetition_penalty = 1.2f;
  requests[3].on_logits = [](int64_t, std::span<const float>) {};
  return requests;
}

Engine load(int steps_ahead) {
  EngineOptions options;
  options.threads = 1;
  options.context_size = 64;
  options.kv_tokens = 96;
  options.max_requests = 6;
  options.step_tokens = 24;
  options.steps_ahead = steps_ahead;
  return Engine::load(testing::data("tiny/llama3"), options);
}

// Where allocations may fail.
enum class Place { nowhere, submit, step, cancel };

template <class Call>
void attempt(bool may_fail, Call&& call) {
  if (!may_fail) {
    call();
    return;
  }
  try {
    const Armed armed;
    call();
  } catch (const std::bad_alloc&) {
  }
  if (plan.failures > 0) {
    plan.failing = 0;  // memory is there again
  }
}

Outcome serve(Engine& engine, Place place, bool cancel) {
  Outcome result;
  const auto submit = [&](size_t index, Request request) {
    result.ids.push_back(0);
    OnToken listener = [&result, index](const TokenEvent& event) {
      const Disarmed disarmed;
      result.heard[{index, event.sample}].add(event);
    };
    attempt(place == Place::submit,
            [&] { result.ids.back() = engine.submit(std::move(request), std::move(listener)); });
  };
  const auto step = [&] {
    bool more = true;  // after a failure there may be
    attempt(place == Place::step, [&] { more = engine.step(); });
    return more;
  };
  std::vector<Request> requests = mixed_requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    submit(i, std::move(requests[i]));
    step();
  }
  if (cancel) {
    attempt(place == Place::cancel, [&] { engine.cancel(result.ids[1]); });
  }
  int steps = 0;
  while (step()) {
    if (++steps > 500) {
      ADD_FAILURE() << "the requests do not end";
      break;
    }
  }
  return result;
}

// What holds whatever failed: a sample has ended once, with an error or as it did in one of the
// outcomes without failures.
void check(const Outcome& outcome, const std::vector<Outcome>& undisturbed) {
  for (size_t i = 0; i < outcome.ids.size(); ++i) {
    for (int32_t sample = 0; sample < mixed_requests()[i].samples; ++sample) {
      SCOPED_TRACE(::testing::Message() << "request " << i << " sample " << sample);
      const auto heard = outcome.heard.find({i, sample});
      if (outcome.ids[i] == 0) {
        EXPECT_TRUE(heard == outcome.heard.end()) << "an event of a request that was refused";
        continue;
      }
      ASSERT_TRUE(heard != outcome.heard.end()) << "nothing was heard";
      ASSERT_EQ(heard->second.finish.size(), 1u);
      EXPECT_TRUE(heard->second.finish.front() == FinishReason::error ||
                  std::any_of(undisturbed.begin(), undisturbed.end(), [&](const Outcome& other) {
                    return other.heard.at({i, sample}) == heard->second;
                  }));
    }
  }
}

constexpr int64_t kAll = testing::kAllAllocations;

struct Case {
  const char* name;
  Place place;
  int64_t failing;  // allocations one after the other, within one call
  int steps_ahead;

  std::string full_name() const { return name + std::to_string(steps_ahead) + "Ahead"; }
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.full_name(); }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int steps_ahead : {0, 1}) {
    cases.insert(cases.end(), {{"OneOfSubmit", Place::submit, 1, steps_ahead},
                               {"AllOfSubmit", Place::submit, kAll, steps_ahead},
                               {"OneOfStep", Place::step, 1, steps_ahead},
                               {"AllOfStep", Place::step, kAll, steps_ahead},
                               {"OneOfCancel", Place::cancel, 1, steps_ahead},
                               {"AllOfCancel", Place::cancel, kAll, steps_ahead}});
  }
  return cases;
}

class AllocationFailure : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Places, AllocationFailure, ::testing::ValuesIn(all_cases()),
                         [](const auto& instance) { return instance.param.full_name(); });

TEST_P(AllocationFailure, NoSampleIsLostAndNoneEndsTwice) {
  const Case& c = GetParam();
  Engine engine = load(c.steps_ahead);
  std::vector<Outcome> undisturbed{serve(engine, Place::nowhere, /*cancel=*/false)};
  const bool cancel = c.place == Place::cancel;
  if (cancel) {
    undisturbed.push_back(serve(engine, Place::nowhere, /*cancel=*/true));
  }
  ASSERT_GT(engine.stats().preemptions, 0);
  ASSERT_GT(engine.stats().shared_tokens, 0);
  Request small;
  small.prompt = {5, 6, 7};
  small.max_tokens = 2;
  small.ignore_eos = true;
  const std::vector<int32_t> small_tokens = engine.generate({small}).front().tokens;

  // Steps allocate the most; sanitizers make them slow.
  const int64_t stride =
      c.place == Place::step ? (c.failing == 1 ? 1 : 3) * (testing::kSanitized ? 11 : 1) : 1;
  bool reached = true;
  for (int64_t k = 0; reached && !HasFailure(); k += stride) {
    SCOPED_TRACE(::testing::Message() << "allocation " << k);
    plan = {.armed = false, .passing = k, .failing = c.failing, .failures = 0};
    const Outcome disturbed = serve(engine, c.place, cancel);
    reached = plan.failures > 0;
    EXPECT_TRUE(reached || k > 0 || cancel) << "nothing was allocated";
    check(disturbed, undisturbed);
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
    EXPECT_EQ(engine.generate({small}).front().tokens, small_tokens);
  }
}

// In the order of the places; of each the token first.
std::vector<std::pair<int32_t, float>> flat(const std::vector<TokenLogProbs>& places) {
  std::vector<std::pair<int32_t, float>> all;
  for (const TokenLogProbs& place : places) {
    all.emplace_back(place.token.token, place.token.log_prob);
    for (const TokenLogProb& other : place.top) {
      all.emplace_back(other.token, other.log_prob);
    }
  }
  return all;
}

// Also of allocations in the listener, which adds events up, and at the last token.
TEST(AllocationFailureInGenerate, ASampleIsWholeOrAnError) {
  std::vector<Request> requests = mixed_requests();
  requests[0].ignore_eos = false;
  for (int steps_ahead : {0, 1}) {
    Engine engine = load(steps_ahead);
    const std::vector<Completion> whole = engine.generate(requests);
    ASSERT_EQ(whole.size(), 6u);
    const int64_t stride = testing::kSanitized ? 13 : 1;
    bool reached = true;
    int64_t of_samples = 0;  // errors that are not of the call
    for (int64_t k = 0; reached && !HasFailure(); k += stride) {
      SCOPED_TRACE(::testing::Message() << "allocation " << k);
      plan = {.armed = false, .passing = k, .failing = 1, .failures = 0};
      std::vector<Request> again = requests;
      std::vector<Completion> done;
      attempt(/*may_fail=*/true, [&] { done = engine.generate(std::move(again)); });
      reached = plan.failures > 0;
      EXPECT_TRUE(done.empty() || done.size() == whole.size());
      for (size_t i = 0; i < done.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << "sample " << i);
        if (done[i].finish == FinishReason::error) {
          ++of_samples;
          EXPECT_NE(done[i].error, "");
          continue;
        }
        EXPECT_EQ(done[i].finish, whole[i].finish);
        EXPECT_EQ(done[i].tokens, whole[i].tokens);
        EXPECT_EQ(done[i].text, whole[i].text);
        EXPECT_EQ(flat(done[i].log_probs), flat(whole[i].log_probs));
        EXPECT_EQ(flat(done[i].prompt_log_probs), flat(whole[i].prompt_log_probs));
      }
      while (engine.step()) {
      }
      EXPECT_EQ(engine.free_pages(), engine.total_pages());
    }
    EXPECT_GT(of_samples, 0);
  }
}

// Its listeners refer to variables of the call.
TEST(AllocationFailureInGenerate, NoRequestIsLeftBehind) {
  const int64_t stride = testing::kSanitized ? 41 : 7;
  for (int steps_ahead : {0, 1}) {
    Engine engine = load(steps_ahead);
    for (int64_t failing : {int64_t{1}, kAll}) {
      bool reached = true;
      for (int64_t k = 0; reached && !HasFailure(); k += stride) {
        SCOPED_TRACE(::testing::Message() << "allocation " << k);
        plan = {.armed = false, .passing = k, .failing = failing, .failures = 0};
        std::vector<Request> requests = mixed_requests();
        attempt(/*may_fail=*/true, [&] { engine.generate(std::move(requests)); });
        reached = plan.failures > 0;
        int steps = 0;
        while (engine.step()) {
          ++steps;
        }
        EXPECT_LE(steps, steps_ahead);  // what was in flight
        EXPECT_EQ(engine.free_pages(), engine.total_pages());
      }
    }
  }
}

// The end of a sample is heard of even so, but as that of one that is not whole.
TEST(AllocationFailureAtTheEnd, OfTheTextThatIsHeldBack) {
  struct End {
    FinishReason reason;
    std::string text;
    std::string error;
  };
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(testing::data("tiny/llama3"));
  const std::string held_back = "longer than a string without memory";
  const auto end = [&](FinishReason reason, std::string_view error, int64_t failing) {
    std::vector<End> heard;
    const auto submission = std::make_shared<Submission>();
    submission->request.prompt = {1};
    submission->request.stop = {held_back + ", and more"};
    submission->on_token = [&heard](const TokenEvent& event) {
      const Disarmed disarmed;
      heard.push_back({event.finish.value(), std::string(event.text), std::string(event.error)});
    };
    Sequence sequence;
    sequence.submission = submission;
    sequence.text.emplace(*tokenizer, /*continues=*/true);
    sequence.stops = StopMatcher(submission->request.stop);
    EXPECT_EQ(sequence.stops.add(held_back), "");
    plan = {.armed = false, .passing = 0, .failing = failing, .failures = 0};
    {
      const Armed armed;
      finish(sequence, reason, error);
      finish(sequence, FinishReason::stop);  // it has ended
    }
    EXPECT_EQ(plan.failures, failing == 0 ? 0 : 1);
    EXPECT_EQ(heard.size(), 1u);
    EXPECT_EQ(sequence.finish, heard.at(0).reason);
    return heard.at(0);
  };
  const End whole = end(FinishReason::cancelled, "", 0);
  EXPECT_EQ(whole.reason, FinishReason::cancelled);
  EXPECT_EQ(whole.text, held_back);
  EXPECT_EQ(whole.error, "");
  for (const int64_t failing : {int64_t{1}, kAll}) {
    const End cut = end(FinishReason::cancelled, "", failing);
    EXPECT_EQ(cut.reason, FinishReason::error);
    EXPECT_EQ(cut.text, "");
    EXPECT_EQ(cut.error, "out of memory");
    // What went wrong first counts.
    const End failed = end(FinishReason::error, "the logits are NaN", failing);
    EXPECT_EQ(failed.reason, FinishReason::error);
    EXPECT_EQ(failed.error, "the logits are NaN");
  }
}

bool is_read(const std::string& text) {
  std::istringstream stream(text);
  std::string line;
  return read_line(stream, line);
}

// In destructors, too, where an exception would end the program.
TEST(AllocationFailureInReaders, AnErrorIsThrown) {
  const std::filesystem::path model = testing::data("tiny/llama3");
  const std::string json = read_text_file(model / "tokenizer.json", 1 << 24);
  struct Reader {
    const char* name;
    int64_t stride;
    std::function<void()> read;
  };
  const std::vector<Reader> readers{
      {"a document", 1, [&] { parse_json(json, "text", 64); }},
      {"the config", 1, [&] { read_model_config(model); }},
      {"the defaults", 1, [&] { read_generation_defaults(model); }},
      {"the weights' headers", 1, [&] { Checkpoint checkpoint(model); }},
      {"the tokenizer", 7, [&] { load_tokenizer(model); }},
      {"threads", 1, [] { ThreadPool pool(4); }},
      {"a line", 1, [] { EXPECT_TRUE(is_read(std::string(100, 'x'))); }},
  };
  for (const Reader& reader : readers) {
    SCOPED_TRACE(reader.name);
    int64_t failed = 0;
    bool reached = true;
    for (int64_t k = 0; reached; k += reader.stride * (testing::kSanitized ? 13 : 1)) {
      plan = {.armed = false, .passing = k, .failing = 1, .failures = 0};
      bool thrown = false;
      try {
        const Armed armed;
        reader.read();
      } catch (const std::bad_alloc&) {
        thrown = true;
      } catch (const Error&) {  // that names the file
        thrown = true;
      }
      reached = plan.failures > 0;
      EXPECT_TRUE(thrown || !reached) << "allocation " << k;
      failed += reached ? 1 : 0;
    }
    EXPECT_GT(failed, 0);
  }
}

// Removing a member frees all of its values, however deep, without allocating.
TEST(AllocationFailureInReaders, MembersAreRemovedWithoutAllocations) {
  JsonDocument document = parse_json(
      R"({"old": {"a": [[1, "a string that is long"], {"b": {}}]}, "new": 1})", "text", 8);
  const std::string key = "old";
  constexpr int64_t kMany = 1000;
  plan = {.armed = false, .passing = kMany, .failing = 0, .failures = 0};
  {
    const Armed armed;
    remove_member(document.root(), key);
    remove_member(document.root(), key);  // which is not there any more
  }
  EXPECT_EQ(plan.passing, kMany);
  EXPECT_EQ(document.root().dump(), R"({"new":1})");
}

}  // namespace
}  // namespace sparsellm
