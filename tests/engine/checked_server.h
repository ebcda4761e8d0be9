#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace sparsellm::testing {

// Options for the synthetic models of these tests on the first GPU: deterministic, so that a
// request has the same tokens in any company.
EngineOptions serving_options(std::string_view weight_format);

// Greedy and sampled ones, of several lengths.
std::vector<Request> served_requests(const Engine& engine, int64_t count);

// The tokens of each request alone.
std::vector<std::vector<int32_t>> tokens_alone(Engine& engine,
                                               const std::vector<Request>& requests);

// Runs the first `count` requests at once; what is wrong with their tokens, or nothing.
std::string check_tokens(Engine& engine, const std::vector<Request>& requests,
                         const std::vector<std::vector<int32_t>>& expected, size_t count);

// An engine that serves in a thread of its own until stop(): one, two, ... requests at once, with
// the tokens of each compared with those that it has alone.
class CheckedServer {
 public:
  explicit CheckedServer(Engine& engine);
  ~CheckedServer() { stop(); }
  CheckedServer(const CheckedServer&) = delete;
  CheckedServer& operator=(const CheckedServer&) = delete;

  // What went wrong, or nothing.
  const std::string& stop();
  int64_t rounds() const { return rounds_; }

 private:
  void serve();

  Engine& engine_;
  std::vector<Request> requests_;
  std::vector<std::vector<int32_t>> expected_;
  std::string problem_;
  std::atomic<int64_t> rounds_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace sparsellm::testing
