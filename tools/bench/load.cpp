#include "tools/bench/load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/pinned_buffer.h"
#include "models/storage/safetensors.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/statistics.h"

namespace sparsellm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBlock = 16 << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Block {
  std::filesystem::path file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Of the files that hold the model's tensors.
std::vector<Block> blocks_of(const std::filesystem::path& directory) {
  const Checkpoint checkpoint(directory);
  std::map<std::filesystem::path, int64_t> files;
  for (const std::string& name : checkpoint.names()) {
    const MappedFile& file = checkpoint.file_of(checkpoint.find(name)->bytes);
    files[file.path()] = file.size();
  }
  std::vector<Block> blocks;
  for (const auto& [file, size] : files) {
    for (int64_t offset = 0; offset < size; offset += kBlock) {
      blocks.push_back({.file = file, .offset = offset, .bytes = std::min(kBlock, size - offset)});
    }
  }
  return blocks;
}

void read_block(const Block& block, std::vector<char>& to) {
  const int file = ::open(block.file.c_str(), O_RDONLY | O_CLOEXEC);
  require(file >= 0, "{}: {}", block.file.string(), std::strerror(errno));
  int64_t done = 0;
  while (done < block.bytes) {
    const ssize_t count = ::pread(file, to.data() + done, static_cast<size_t>(block.bytes - done),
                                  block.offset + done);
    if (count <= 0) {
      break;
    }
    done += count;
  }
  ::close(file);
  require(done == block.bytes, "{}: cannot be read", block.file.string());
}

// Seconds for all blocks on all hardware threads.
double parallel_read_seconds(const std::vector<Block>& blocks) {
  const size_t threads = std::max(std::thread::hardware_concurrency(), 1u);
  std::vector<std::vector<char>> memory(threads, std::vector<char>(static_cast<size_t>(kBlock)));
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const Clock::time_point start = Clock::now();
  std::vector<std::jthread> readers;  // which are waited for also where one cannot be started
  for (size_t i = 0; i < threads; ++i) {
    readers.emplace_back([&, i] {
      try {
        for (size_t index = next++; index < blocks.size(); index = next++) {
          read_block(blocks[index], memory[i]);
        }
      } catch (const Error&) {
        failed = true;
      }
    });
  }
  readers.clear();
  require(!failed, "a file of the checkpoint cannot be read");
  return seconds_since(start);
}

double pinned_copy_seconds(Device device, int64_t bytes) {
  const CudaContext cuda(device);
  const PinnedBuffer from(kBlock, "a copy from page-locked memory");
  const Buffer to(device, kBlock, "a copy from page-locked memory");
  cuda.copy_async(to.data(), from.data(), kBlock);
  cuda.synchronize();
  const Clock::time_point start = Clock::now();
  for (int64_t done = 0; done < bytes; done += kBlock) {
    cuda.copy_async(to.data(), from.data(), std::min(kBlock, bytes - done));
  }
  cuda.synchronize();
  return seconds_since(start);
}

}  // namespace

void bench_load(const ModelArgs& model, int64_t repeats, spdlog::logger& log,
                ReportWriter& report) {
  const Device device = parse_device(model.device);
  require(device.is_cuda(), "a load is measured on CUDA alone, not on {}", to_string(device));
  const std::vector<Block> blocks = blocks_of(model.model);
  int64_t bytes = 0;
  for (const Block& block : blocks) {
    bytes += block.bytes;
  }
  parallel_read_seconds(blocks);  // into the page cache

  std::vector<double> loads;
  std::vector<double> reads;
  std::vector<double> copies;
  ModelArgs untuned = model;
  untuned.tunes = false;
  for (int64_t i = 0; i < repeats; ++i) {
    throw_if_interrupted();
    reads.push_back(parallel_read_seconds(blocks));
    copies.push_back(pinned_copy_seconds(device, bytes));
    EngineOptions options;
    options.with_tokenizer = false;
    options.max_requests = 1;
    options.step_tokens = 1;
    const Engine engine = load_engine(untuned, options, log);
    loads.push_back(engine.stats().weight_seconds);
  }

  using Kind = Column::Kind;
  report.begin_table(
      "load",
      {{.key = "what", .title = "what", .kind = Kind::text},
       {.key = "seconds", .title = "time", .unit = "s", .kind = Kind::spread, .decimals = 3},
       {.key = "gb_per_s", .title = "speed", .unit = "GB/s", .decimals = 2},
       {.key = "of_slower_bound", .title = "of the slower bound", .unit = "x", .decimals = 2}});
  const double bound = std::max(median(reads), median(copies));
  const auto add = [&](const char* what, const std::vector<double>& seconds) {
    report.add_row({what, spread_of(seconds), static_cast<double>(bytes) * 1e-9 / median(seconds),
                    median(seconds) / bound});
  };
  add("parallel read of the files", reads);
  add("copies from page-locked memory", copies);
  add("weights to the GPU", loads);
}

}  // namespace sparsellm
