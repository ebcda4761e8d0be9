#include "tools/eval/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "models/storage/safetensors.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/cli/printable.h"
#include "tools/eval/divergence.h"
#include "tools/eval/perplexity.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// ---- The arithmetic.

std::vector<double> log_softmax(const std::vector<float>& logits) {
  double largest = -std::numeric_limits<double>::infinity();
  for (float logit : logits) {
    largest = std::max<double>(largest, logit);
  }
  double total = 0.0;
  for (float logit : logits) {
    total += std::exp(logit - largest);
  }
  std::vector<double> result;
  result.reserve(logits.size());
  for (float logit : logits) {
    result.push_back(logit - largest - std::log(total));
  }
  return result;
}

double naive_kl(const std::vector<double>& log_p, const std::vector<double>& log_q) {
  double sum = 0.0;
  for (size_t i = 0; i < log_p.size(); ++i) {
    sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  }
  return sum;
}

std::vector<float> random_logits(size_t size, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal;  // whose deviation may not be 0
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = spread * normal(random);
  }
  return logits;
}

TEST(Divergence, MatchesTheDefinition) {
  std::mt19937 random(5);
  for (size_t size : {1u, 2u, 7u, 64u, 1001u, 32000u}) {
    for (float difference : {1e-4f, 0.1f, 5.0f}) {
      const std::vector<float> p = random_logits(size, 3.0f, random);
      std::vector<float> q = random_logits(size, difference, random);
      for (size_t i = 0; i < size; ++i) {
        q[i] += p[i] + 2.0f;
      }
      const std::vector<double> log_p = log_softmax(p);
      const std::vector<double> log_q = log_softmax(q);
      const double expected = naive_kl(log_p, log_q);
      const size_t next = random() % size;
      const Divergence d = divergence(p, q, static_cast<int32_t>(next));
      EXPECT_NEAR(d.kl, expected, 1e-13 + 1e-12 * expected);
      EXPECT_GE(d.kl, 0.0);
      EXPECT_NEAR(d.p.log_prob, log_p[next], 1e-12);
      EXPECT_NEAR(d.q.log_prob, log_q[next], 1e-12);
      const auto p_top = std::max_element(p.begin(), p.end()) - p.begin();
      EXPECT_EQ(d.p.top, p_top);
      EXPECT_EQ(d.q.top, std::max_element(q.begin(), q.end()) - q.begin());
      EXPECT_NEAR(d.p.top_probability, std::exp(log_p[static_cast<size_t>(p_top)]), 1e-12);
      EXPECT_NEAR(d.top1_gap,
                  log_p[static_cast<size_t>(p_top)] - log_p[static_cast<size_t>(d.q.top)], 1e-12);
    }
  }
}

TEST(Divergence, EqualLogitsHaveNone) {
  std::mt19937 random(6);
  for (float spread : {0.0f, 1.0f, 1e30f}) {
    const std::vector<float> logits = random_logits(777, spread, random);
    const Divergence d = divergence(logits, logits, 3);
    EXPECT_EQ(d.kl, 0.0);
    EXPECT_EQ(d.p.top, d.q.top);
    EXPECT_EQ(d.top1_gap, 0.0);
    EXPECT_EQ(d.p.log_prob, d.q.log_prob);
  }
}

TEST(Divergence, ExtremesStayFinite) {
  const float huge = std::numeric_limits<float>::max();
  const std::vector<float> p{huge, -huge, 0.0f};
  const std::vector<float> q{-huge, huge, 0.0f};
  const Divergence d = divergence(p, q, 1);
  EXPECT_NEAR(d.kl / (2.0 * huge), 1.0, 1e-12);
  EXPECT_NEAR(d.p.log_prob / (-2.0 * huge), 1.0, 1e-12);
  EXPECT_EQ(d.p.top, 0);
  EXPECT_EQ(d.q.top, 1);
  EXPECT_EQ(d.top1_gap, 2.0 * huge);
  EXPECT_EQ(d.q.top_probability, 1.0);
}

TEST(Divergence, TheSmallestIdOfEquals) {
  const Divergence d =
      divergence(std::vector<float>{0.0f, 1.0f, 1.0f}, std::vector<float>{1.0f, 0.0f, 1.0f}, 0);
  EXPECT_EQ(d.p.top, 1);
  EXPECT_EQ(d.q.top, 0);
  EXPECT_EQ(d.top1_gap, 1.0);
}

TEST(SampleMean, MatchesTheDefinition) {
  std::mt19937 random(8);
  std::normal_distribution<double> normal(3.0, 0.5);
  std::vector<double> sample(1000);
  SampleMean mean;
  double sum = 0.0;
  for (double& x : sample) {
    x = normal(random);
    sum += x;
    mean.add(x);
  }
  double squares = 0.0;
  for (double x : sample) {
    squares += (x - sum / 1000) * (x - sum / 1000);
  }
  EXPECT_EQ(mean.count(), 1000);
  EXPECT_NEAR(mean.mean().value, sum / 1000, 1e-12);
  EXPECT_NEAR(mean.mean().standard_error, std::sqrt(squares / 999 / 1000), 1e-12);
  EXPECT_NEAR(mean.exp_of_mean().value, std::exp(sum / 1000), 1e-10);
  EXPECT_NEAR(mean.exp_of_mean().standard_error, std::exp(sum / 1000) * mean.mean().standard_error,
              1e-12);
}

TEST(SampleMean, NeedsTwo) {
  SampleMean mean;
  mean.add(1.0);
  EXPECT_TRUE(testing::throws_error([&] { mean.mean(); }, "at least 2"));
  mean.add(1.0);
  EXPECT_EQ(mean.mean().value, 1.0);
  EXPECT_EQ(mean.mean().standard_error, 0.0);
}

TEST(Printable, OneLineForATerminal) {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases{
      {"", ""},
      {"a king's \"daughter\"", "a king's \"daughter\""},
      {"one\ntwo\r\n\tthree", "one\\ntwo\\r\\n\\tthree"},
      {"back\\slash", "back\\\\slash"},
      {"K\xc3\xb6nig \xf0\x9f\x91\x91", "K\xc3\xb6nig \xf0\x9f\x91\x91"},
      {std::string("\0\x1b[31m\x7f", 7), "\\x00\\x1b[31m\\x7f"},
      {"\xc2\x9b", "\\xc2\\x9b"},                 // a control character of ISO 6429
      {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},        // line separator
      {"\xe2\x80\xae", "\\xe2\\x80\\xae"},        // right-to-left override
      {"\xff x \xe2\x82", "\\xff x \\xe2\\x82"},  // not UTF-8, cut off
  };
  for (const Case& c : cases) {
    EXPECT_EQ(printable(c.text), c.expected);
  }
}

// ---- Windows.

fs::path llama() { return testing::data("models/fable-llama-relu-8m"); }
fs::path opt() { return testing::data("models/fable-opt-8m"); }
fs::path tiny() { return testing::data("tiny/opt_gelu"); }

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string beginning(size_t bytes) {
  return read(testing::data("text/peter_pan.txt")).substr(0, bytes);
}

TEST(TextWindows, CoverTheText) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(llama());
  const std::string text = beginning(2000);
  const std::vector<int32_t> ids = tokenizer->encode(text, {.add_special_tokens = false});
  for (const auto protocol : {PerplexityProtocol::windows, PerplexityProtocol::llama_cpp}) {
    const bool own_bos = protocol == PerplexityProtocol::windows;
    const auto windows = cut_windows(*tokenizer, text, 32, protocol);
    EXPECT_EQ(windows.size(), own_bos ? ids.size() / 31 : (ids.size() + 1) / 32);
    for (const TextWindow& window : windows) {
      ASSERT_EQ(window.tokens.size(), 32u);
      EXPECT_EQ(window.tokens[0], *tokenizer->bos_id());
      EXPECT_EQ(window.scored(), own_bos ? 31u : 15u);
      EXPECT_FALSE(window.is_scored(window.first_scored - 1));
      EXPECT_TRUE(window.is_scored(31));
      EXPECT_FALSE(window.is_scored(32));
      for (size_t i = 1; i < 32; ++i) {
        EXPECT_EQ(window.tokens[i], ids[static_cast<size_t>(window.text_index(i))]);
      }
    }
  }
}

// ---- Models.

Engine load(
    const fs::path& directory, int64_t context,
    const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
  EngineOptions options;
  options.context_size = context;
  const ComparisonBatch batch = comparison_batch(4096, context);
  options.step_tokens = batch.step_tokens;
  options.max_requests = batch.windows;
  change(options);
  return Engine::load(directory, options);
}

Comparison compare(Engine& a, Engine& b, const std::string& text,
                   const ComparisonOptions& options) {
  return compare_models({.name = "model A (one)", .engine = a},
                        {.name = "model B (two)", .engine = b}, text, options);
}

// A folder with the files of a model, some of them replaced.
void link_model(const fs::path& model, const testing::TempDir& directory) {
  for (const auto& entry : fs::directory_iterator(model)) {
    fs::create_symlink(entry.path(), directory.path() / entry.path().filename());
  }
}

void replace(const testing::TempDir& directory, const char* name, const std::string& bytes) {
  fs::remove(directory.path() / name);
  directory.write(name, bytes);
}

// Turns the f16 values of a tensor into the 2-byte values of another.
using ConvertValue = std::function<uint16_t(const std::string& tensor, size_t index, Half value)>;

// Replaces the model.safetensors in a folder by that of `model`, converted.
void rewrite_weights(const fs::path& model, const testing::TempDir& directory,
                     const std::string& dtype, const ConvertValue& convert) {
  nlohmann::json header;
  std::string data;
  const SafetensorsFile file(model / "model.safetensors");
  for (const auto& [name, tensor] : file.tensors()) {
    ASSERT_EQ(tensor.dtype, "F16");
    std::vector<uint16_t> values(tensor.bytes.size() / 2);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = convert(name, i, Half{values[i]});
    }
    header[name] = {{"dtype", dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data.append(reinterpret_cast<const char*>(values.data()), tensor.bytes.size());
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  replace(directory, "model.safetensors", bytes + text + data);
}

TEST(Compare, AModelWithItself) {
  const std::string text = beginning(4096);
  Engine a = load(llama(), 128);
  Engine b = load(llama(), 128);
  const Comparison result = compare(a, b, text, {.context = 128});
  EXPECT_EQ(result.tokens, 1143);
  EXPECT_EQ(result.windows, 9);
  EXPECT_EQ(result.kl.value, 0.0);
  EXPECT_EQ(result.kl.standard_error, 0.0);
  EXPECT_EQ(result.kl_median, 0.0);
  EXPECT_EQ(result.kl_max, 0.0);
  EXPECT_EQ(result.top1_agreement, 100.0);
  EXPECT_EQ(result.top1_gap_max, 0.0);
  EXPECT_EQ(result.perplexity_a.value, result.perplexity_b.value);
  EXPECT_EQ(result.perplexity_ratio.value, 1.0);
  EXPECT_EQ(result.perplexity_ratio.standard_error, 0.0);
  EXPECT_EQ(result.worst.position, 0);
  EXPECT_EQ(result.worst.context, "");
}

TEST(Compare, AKvCacheOfF16ChangesNextToNothing) {
  const std::string text = beginning(8192);
  for (const fs::path& model : {llama(), opt()}) {
    Engine a = load(model, 256);
    Engine b = load(model, 256, [](EngineOptions& o) { o.kv_dtype = DType::f16; });
    EXPECT_EQ(b.stats().kv_bytes, a.stats().kv_bytes / 2);
    const Comparison result = compare(a, b, text, {.context = 256});
    EXPECT_GT(result.kl.value, 0.0);
    EXPECT_LT(result.kl.value, 1e-5) << model;
  }
}

TEST(Compare, MoreWindowsThanOneBatchHas) {
  const std::string text = beginning(6000);
  Engine a = load(tiny(), 128);
  Engine b = load(tiny(), 128);
  int64_t last_done = 0;
  int64_t total = 0;
  const Comparison result =
      compare(a, b, text, {.context = 128, .progress = [&](int64_t done, int64_t all) {
                             EXPECT_GE(done, last_done);
                             last_done = done;
                             total = all;
                           }});
  EXPECT_GT(result.windows, comparison_batch(4096, 128).windows);
  EXPECT_EQ(result.tokens, result.windows * 127);
  EXPECT_EQ(last_done, result.tokens);
  EXPECT_EQ(total, result.tokens);
  EXPECT_EQ(result.kl_max, 0.0);
  EXPECT_EQ(result.top1_agreement, 100.0);
}

// The numbers that tests/tools/eval/compare_reference.py printed.
TEST(Compare, RoundedToBf16MatchesNumpy) {
  const std::string text = beginning(4096);
  const testing::TempDir directory;
  link_model(llama(), directory);
  rewrite_weights(llama(), directory, "BF16", [](const std::string&, size_t, Half value) {
    return to_bfloat16(to_float(value)).bits;
  });
  Engine a = load(llama(), 128);
  Engine b = load(directory.path(), 128);
  const Comparison result = compare(a, b, text, {.context = 128});

  const auto expect_close = [](double got, double expected) {
    EXPECT_NEAR(got, expected, 0.01 * expected);
  };
  EXPECT_EQ(result.tokens, 1143);
  EXPECT_EQ(result.windows, 9);
  expect_close(result.kl.value, 2.205345609e-05);
  expect_close(result.kl.standard_error, 6.916417304e-07);
  expect_close(result.kl_median, 1.518101063e-05);
  expect_close(result.kl_99, 0.0001177862496);
  expect_close(result.kl_999, 0.0001975525844);
  expect_close(result.kl_max, 0.0003060812737);
  EXPECT_NEAR(result.top1_agreement, 100.0 * 1137 / 1143, 0.2);  // two near ties may differ
  EXPECT_NEAR(result.top1_gap_max, 0.007576960396, 1e-4);
  EXPECT_NEAR(result.perplexity_a.value, 78.12062144, 0.001);
  EXPECT_NEAR(result.perplexity_b.value, 78.15573402, 0.001);
  expect_close(result.perplexity_a.standard_error, 6.887183033);
  expect_close(result.perplexity_b.standard_error, 6.890189356);
  EXPECT_NEAR(result.perplexity_ratio.value, 1.000449466, 1e-5);
  expect_close(result.perplexity_ratio.standard_error, 0.0002310922625);

  const ComparedToken& worst = result.worst;
  EXPECT_EQ(worst.position, 108);
  EXPECT_EQ(worst.kl, result.kl_max);
  EXPECT_LE(worst.context.size(), 80u);
  EXPECT_NE(text.find(worst.context + worst.bytes), std::string::npos)
      << worst.context << "|" << worst.bytes;
  const std::vector<int32_t> ids = a.tokenizer().encode(text, {.add_special_tokens = false});
  EXPECT_EQ(worst.id, ids[108]);
  // Of the same token, too, they are rounded differently.
  EXPECT_LE(worst.probability_a, worst.top_a.probability * (1.0 + 1e-12));
  EXPECT_LE(worst.probability_b, worst.top_b.probability * (1.0 + 1e-12));
  EXPECT_EQ(worst.top_a.bytes, a.tokenizer().token_bytes(worst.top_a.id));
}

// Of e^ of more than a double holds.
TEST(Compare, APerplexityThatIsNotFiniteIsAnError) {
  const std::string text = beginning(1500);
  const testing::TempDir directory;
  link_model(tiny(), directory);
  rewrite_weights(tiny(), directory, "F16", [](const std::string& name, size_t, Half value) {
    return name.find("norm") == std::string::npos ? value.bits
                                                  : to_half(1000.0f * to_float(value)).bits;
  });
  Engine a = load(tiny(), 32);
  Engine b = load(directory.path(), 32);
  EXPECT_TRUE(
      testing::throws_error([&] { compare(a, b, text, {.context = 32}); }, "the perplexity of"));
}

// How the engines split the work changes nothing.
TEST(Compare, EnginesMayDifferInTheirLimits) {
  const std::string text = beginning(1500);
  const testing::TempDir directory;
  link_model(tiny(), directory);
  rewrite_weights(tiny(), directory, "BF16", [](const std::string&, size_t, Half value) {
    return to_bfloat16(to_float(value)).bits;
  });
  std::vector<Comparison> results;
  for (const bool odd : {false, true}) {
    Engine a = load(tiny(), 32);
    Engine b = load(directory.path(), 32, [&](EngineOptions& options) {
      if (odd) {
        options.max_requests = 3;
        options.step_tokens = 17;
        options.threads = 2;
      }
    });
    results.push_back(compare(a, b, text, {.context = 32, .threads = odd ? 3 : 1}));
  }
  EXPECT_EQ(results[0].tokens, results[1].tokens);
  EXPECT_NEAR(results[0].kl.value, results[1].kl.value, 1e-15);
  EXPECT_EQ(results[0].kl_max, results[1].kl_max);
  EXPECT_EQ(results[0].kl_median, results[1].kl_median);
  EXPECT_EQ(results[0].worst.position, results[1].worst.position);
  EXPECT_EQ(results[0].worst.context, results[1].worst.context);
}

TEST(Compare, PerplexitiesAreThoseOfPerplexity) {
  const std::string text = beginning(1300);
  Engine a = load(tiny(), 64);
  Engine b = load(tiny(), 64);
  for (const auto protocol : {PerplexityProtocol::windows, PerplexityProtocol::llama_cpp}) {
    const Comparison result = compare(a, b, text, {.context = 64, .protocol = protocol});
    const Perplexity expected = measure_perplexity(a, text, 64, protocol, [](int64_t, int64_t) {});
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_EQ(result.windows, expected.windows);
    EXPECT_NEAR(result.perplexity_a.value, expected.perplexity, 1e-5 * expected.perplexity);
    EXPECT_NEAR(result.perplexity_a.standard_error, expected.standard_error,
                1e-5 * expected.standard_error);
    EXPECT_EQ(result.perplexity_b.value, result.perplexity_a.value);
  }
}

TEST(Compare, BatchesFitTheirMemory) {
  struct Case {
    int64_t vocab_size;
    int64_t context;
    ComparisonBatch expected;
  };
  const std::vector<Case> cases{
      {4096, 512, {.step_tokens = 2048, .windows = 4}},
      {4096, 1 << 20, {.step_tokens = 2048, .windows = 1}},
      {128256, 512, {.step_tokens = 1046, .windows = 2}},
      {128256, 8192, {.step_tokens = 1046, .windows = 1}},
      {int64_t{1} << 31, 4, {.step_tokens = 1, .windows = 1}},
  };
  for (const Case& c : cases) {
    const ComparisonBatch batch = comparison_batch(c.vocab_size, c.context);
    EXPECT_EQ(batch.step_tokens, c.expected.step_tokens);
    EXPECT_EQ(batch.windows, c.expected.windows);
  }
}

TEST(Compare, AnExceptionLeavesTheEnginesUsable) {
  const std::string text = beginning(1000);
  Engine a = load(tiny(), 64);
  Engine b = load(tiny(), 64, [](EngineOptions& options) {
    options.step_tokens = 40;  // there is work left after one step
    options.max_requests = 4;
  });
  EXPECT_THROW(compare(a, b, text,
                       {.context = 64,
                        .progress = [](int64_t, int64_t) { throw std::runtime_error("enough"); }}),
               std::runtime_error);
  EXPECT_EQ(a.free_pages(), a.total_pages());
  EXPECT_EQ(b.free_pages(), b.total_pages());
  EXPECT_EQ(compare(a, b, text, {.context = 64}).kl.value, 0.0);
}

TEST(Compare, RefusesMismatchedOperands) {
  const std::string text = beginning(1000);
  Engine model = load(llama(), 32);

  Engine small = load(testing::data("tiny/llama3"), 32);
  EXPECT_TRUE(testing::throws_error(
      [&] { compare(model, small, text, {.context = 32}); },
      "the vocabularies do not fit: model A (one) has 4096 tokens, model B (two) has 500"));

  Engine other = load(opt(), 32);
  EXPECT_TRUE(testing::throws_error([&] { compare(model, other, text, {.context = 32}); },
                                    "BOS is 1 in model A (one), but 2 in model B (two)"));

  const testing::TempDir directory;
  link_model(opt(), directory);
  std::string merges = read(opt() / "merges.txt");
  merges.resize(merges.find('\n', merges.size() / 4) + 1);
  replace(directory, "merges.txt", merges);
  Engine fewer_merges = load(directory.path(), 32);
  EXPECT_TRUE(testing::throws_error([&] { compare(other, fewer_merges, text, {.context = 32}); },
                                    "the tokenizers do not fit: token "));

  // Also where the tokens of the first windows are the same.
  std::string same;
  for (int i = 0; i < 100; ++i) {
    same += " the";
  }
  EXPECT_TRUE(
      testing::throws_error([&] { compare(other, fewer_merges, same + text, {.context = 32}); },
                            "the tokenizers do not fit: token 1"));

  // And where all that fill windows are, but the rest makes one more of them.
  const std::string rest = text.substr(0, text.find('.'));
  const auto tokens = [](const Engine& engine, const std::string& part) {
    return std::ssize(engine.tokenizer().encode(part, {.add_special_tokens = false}));
  };
  std::string filling;
  for (int64_t left = 2 * 31 - 1 - tokens(other, " " + rest); left > 0; --left) {
    filling += " the";
  }
  const std::string longer = filling + " " + rest;
  ASSERT_EQ(tokens(other, longer), 2 * 31 - 1);
  ASSERT_GE(tokens(fewer_merges, longer), 2 * 31);
  ASSERT_GE(tokens(other, filling), 31);
  EXPECT_TRUE(testing::throws_error([&] { compare(other, fewer_merges, longer, {.context = 32}); },
                                    "the tokenizers do not fit: the text has 1 windows in model A "
                                    "(one), but 2 in model B (two)"));
  EXPECT_TRUE(testing::throws_error([&] { compare(fewer_merges, other, longer, {.context = 32}); },
                                    "the tokenizers do not fit: the text has 2 windows in model A "
                                    "(one), but 1 in model B (two)"));

  EXPECT_TRUE(testing::throws_error([&] { compare(model, model, "A king.", {.context = 32}); },
                                    "model A (one): the text has "));
}

TEST(Compare, RefusesLogitsThatAreNotFinite) {
  const std::string text = beginning(300);
  const testing::TempDir directory;
  link_model(llama(), directory);
  constexpr uint16_t kInfinity = 0x7c00;
  rewrite_weights(llama(), directory, "F16", [](const std::string& name, size_t index, Half value) {
    return name == "model.norm.weight" && index == 5 ? kInfinity : value.bits;
  });
  Engine good = load(llama(), 32);
  Engine bad = load(directory.path(), 32);
  EXPECT_TRUE(testing::throws_error([&] { compare(good, bad, text, {.context = 32}); },
                                    "model B (two): the model's logits contain NaN or infinity"));
  EXPECT_TRUE(testing::throws_error([&] { compare(bad, good, text, {.context = 32}); },
                                    "model A (one): the model's logits contain NaN or infinity"));
}

}  // namespace
}  // namespace sparsellm
