#include "tests/kernels/base/comm_gpu2_fixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "kernels/base/comm_tcp.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {
namespace {

constexpr std::chrono::milliseconds kTimeout{30000};
constexpr int64_t kMemoryBytes = int64_t{64} << 20;
constexpr std::byte kAround{0xff};

Device device_of(int rank) { return {Device::Kind::cuda, comm_test_flags().one_gpu ? 0 : rank}; }

CudaCommOptions adapted(CudaCommOptions options) {
  if (comm_test_flags().one_gpu) {
    options.max_blocks = 16;
  }
  return options;
}

void body_as_rank(int rank, std::unique_ptr<Communicator> host, const GpuRankBody& body,
                  const CudaCommOptions& options) {
  GpuRank context(device_of(rank));
  context.comm = make_cuda_communicator(*host, context.cuda, adapted(options));
  context.exec.comm = context.comm.get();
  try {
    body(context);
    context.cuda.synchronize();
    context.comm->check();
  } catch (const std::exception& error) {
    context.comm->abort(error.what());
    throw;
  }
}

void expect_bytes(GpuRank& rank, const RankTensor& found, const std::vector<std::byte>& expected,
                  const std::string& what) {
  const std::string wrong =
      difference(rank.bytes_of(found.view()), expected, size_of(found.view().dtype()));
  rank.comm->check();
  require(wrong.empty(), "{}: {}", what, wrong);
  require(rank.is_intact_around(found), "{}: something else was overwritten", what);
}

// Over NCCL, with more than two ranks, the order is not known.
void expect_close(GpuRank& rank, const RankTensor& found, const std::vector<std::byte>& expected,
                  const std::string& what) {
  const std::vector<std::byte> bytes = rank.bytes_of(found.view());
  rank.comm->check();
  visit_float(found.view().dtype(), [&]<class T>(T) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value{};
      T right{};
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      std::memcpy(&right, expected.data() + at, sizeof(T));
      const float error = std::abs(to_float(value) - to_float(right));
      require(error <= 0.125f, "{}: element {} is {} instead of {}", what, at / sizeof(T),
              to_float(value), to_float(right));
    }
  });
}

std::vector<std::optional<CommWay>> ways_of(const GpuRank& rank) {
  std::vector<std::optional<CommWay>> ways{std::nullopt};
  for (const CommWay way : kCommWays) {
    if (rank.comm->has(way)) {
      ways.emplace_back(way);
    }
  }
  return ways;
}

}  // namespace

CommTestFlags& comm_test_flags() {
  static CommTestFlags flags;
  return flags;
}

GpuRank::GpuRank(Device on)
    : device(on),
      workspace(on, 1 << 20),
      threads(1),
      memory(on, kMemoryBytes, "a test"),
      cuda(on),
      exec{.device = on, .workspace = workspace, .threads = threads, .cuda = &cuda} {}

RankTensor GpuRank::tensor(DType dtype, std::initializer_list<int64_t> sizes, Layout layout,
                           int64_t place) const {
  constexpr int64_t kEdge = 256;  // bytes
  constexpr int64_t kGap = 3;     // elements before and after a row
  const int64_t size = size_of(dtype);
  const int64_t rows = sizes.begin()[0];
  int64_t columns = 1;
  for (const int64_t* one = sizes.begin() + 1; one < sizes.end(); ++one) {
    columns *= *one;
  }
  const bool strided = layout == Layout::strided;
  const int64_t stride = strided ? columns + 2 * kGap : columns;
  RankTensor tensor;
  tensor.begin_ = static_cast<std::byte*>(memory.data()) + place;
  tensor.bytes_ = kEdge + rows * stride * size + kEdge;
  require(place + tensor.bytes_ <= memory.bytes(), "the memory of a test is too small");
  std::byte* const data = tensor.begin_ + kEdge;
  tensor.view_ = strided ? Tensor(data, dtype, {rows, stride}, device).columns(kGap, columns)
                         : Tensor(data, dtype, sizes, device);
  const std::vector<std::byte> ones(static_cast<size_t>(tensor.bytes_), kAround);
  cuda.copy(tensor.begin_, ones.data(), tensor.bytes_);
  return tensor;
}

bool GpuRank::is_intact_around(const RankTensor& x) const {
  std::vector<std::byte> all(static_cast<size_t>(x.bytes_));
  cuda.copy(all.data(), x.begin_, x.bytes_);
  const int64_t size = size_of(x.view_.dtype());
  auto row = all.begin() + (static_cast<std::byte*>(x.view_.raw()) - x.begin_);
  for (int64_t i = 0; i < x.view_.size(0); ++i) {
    std::fill_n(row, x.view_.row_size() * size, kAround);
    row += x.view_.row_stride() * size;
  }
  return std::all_of(all.begin(), all.end(), [](std::byte byte) { return byte == kAround; });
}

void GpuRank::set_bytes(const Tensor& x, const std::vector<std::byte>& bytes) const {
  const int64_t size = size_of(x.dtype());
  if (!bytes.empty()) {
    cuda.copy_rows_async(x.raw(), x.row_stride() * size, bytes.data(), x.row_size() * size,
                         x.row_size() * size, x.size(0));
    cuda.synchronize();
  }
}

std::vector<std::byte> GpuRank::bytes_of(const Tensor& x) const {
  const int64_t size = size_of(x.dtype());
  std::vector<std::byte> bytes(static_cast<size_t>(x.bytes()));
  if (!bytes.empty()) {
    cuda.copy_rows_async(bytes.data(), x.row_size() * size, x.raw(), x.row_stride() * size,
                         x.row_size() * size, x.size(0));
  }
  cuda.synchronize();
  return bytes;
}

std::vector<std::string> run_gpu_ranks(int ranks, const GpuRankBody& body,
                                       const CudaCommOptions& options) {
  std::vector<std::string> devices;
  for (int rank = 0; rank < ranks; ++rank) {
    devices.push_back(to_string(device_of(rank)));
  }
  auto hosts = make_thread_communicators(ranks, {.devices = devices, .timeout = kTimeout});
  std::vector<std::string> thrown(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < thrown.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body_as_rank(static_cast<int>(i), std::move(hosts[i]), body, options);
      } catch (const std::exception& error) {
        thrown[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

std::string run_gpu_rank_process(const CommTestFlags& flags, const GpuRankBody& body,
                                 const CudaCommOptions& options) {
  try {
    auto host = make_tcp_communicator({.address = flags.address,
                                       .rank = flags.rank,
                                       .size = flags.size,
                                       .device = to_string(device_of(flags.rank)),
                                       .model = "a test",
                                       .timeout = kTimeout});
    body_as_rank(flags.rank, std::move(host), body, options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

void CommGpu2::SetUp() {
  const int gpus = cuda_device_count();
  if (gpus == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  if (gpus < 2 && !comm_test_flags().one_gpu) {
    GTEST_SKIP() << "2 ranks need 2 GPUs, there is " << gpus;
  }
}

void CommGpu2::run(int ranks, const GpuRankBody& body, const CudaCommOptions& options) const {
  for (const std::string& thrown : run_gpu_ranks(ranks, body, options)) {
    EXPECT_EQ(thrown, "") << ranks << " ranks";
  }
}

std::vector<int> CommGpu2::rank_counts() const {
  std::vector<int> counts;
  for (const int ranks : {2, 3, 4, 8}) {
    if (comm_test_flags().one_gpu ? ranks <= 4 : ranks <= cuda_device_count()) {
      counts.push_back(ranks);
    }
  }
  return counts;
}

CommValues::CommValues(DType dtype, uint64_t seed) : dtype_(dtype) {
  Random random(seed);
  stored_.resize(static_cast<size_t>(2 * kValues * size_of(dtype)));
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < 2 * kValues; ++i) {
      const float value = i < kValues ? static_cast<float>(random.uniform(-2.0, 2.0))
                                      : values_[static_cast<size_t>(i - kValues)];
      const T stored = from_float<T>(value);
      values_.push_back(to_float(stored));
      std::memcpy(stored_.data() + i * size_of(dtype), &stored, sizeof(stored));
    }
  });
}

int64_t CommValues::first(int rank, int64_t call) const {
  return (rank * 7919 + call * 104729) % kValues;
}

std::vector<std::byte> CommValues::part(int rank, int64_t call, int64_t count) const {
  const int64_t size = size_of(dtype_);
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(count * size));
  while (count > 0) {
    const int64_t some = std::min(count, kValues);
    const auto begin = stored_.begin() + first(rank, call) * size;
    bytes.insert(bytes.end(), begin, begin + some * size);
    count -= some;
    ++call;  // long messages do not repeat themselves
  }
  return bytes;
}

std::vector<std::byte> CommValues::sum(int ranks, int64_t call, int64_t count) const {
  std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype_)));
  visit_float(dtype_, [&]<class T>(T) {
    for (int64_t done = 0; done < count; done += kValues, ++call) {
      std::vector<const float*> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        parts.push_back(values_.data() + first(rank, call));
      }
      auto* const to = bytes.data() + done * static_cast<int64_t>(sizeof(T));
      for (int64_t i = 0; i < std::min(kValues, count - done); ++i) {
        float sum = parts[0][i];
        for (size_t rank = 1; rank < parts.size(); ++rank) {
          sum += parts[rank][i];
        }
        const T rounded = from_float<T>(sum);
        std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &rounded, sizeof(T));
      }
    }
  });
  return bytes;
}

std::string difference(const std::vector<std::byte>& found, const std::vector<std::byte>& expected,
                       int64_t element_bytes) {
  if (found.size() != expected.size()) {
    return fmt::format("{} bytes instead of {}", found.size(), expected.size());
  }
  const auto at = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  if (at == found.end()) {
    return {};
  }
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); i += static_cast<size_t>(element_bytes)) {
    wrong +=
        std::memcmp(found.data() + i, expected.data() + i, static_cast<size_t>(element_bytes)) != 0
            ? 1
            : 0;
  }
  return fmt::format("{} of {} elements differ, the first is {}", wrong,
                     std::ssize(found) / element_bytes, (at - found.begin()) / element_bytes);
}

void check_sums(GpuRank& rank, bool exact) {
  struct Shape {
    int64_t rows;
    int64_t columns;
    Layout layout = Layout::contiguous;
  };
  const int ranks = rank.comm->size();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const CommValues values(dtype, 1);
    const int64_t largest = (int64_t{4} << 20) / size_of(dtype);
    std::vector<Shape> shapes;
    for (const int64_t count : {1, 2, 3, 7, 8, 9, 383, 384, 385, 767, 768, 769, 1023, 1024, 1025,
                                7168, 65539, 262144, 1048573}) {
      shapes.push_back({1, count});
    }
    shapes.push_back({1, largest});
    shapes.push_back({1, largest + 12345});
    for (const int64_t columns : {1, 5, 37, 64, 4096}) {
      shapes.push_back({17, columns, Layout::strided});
      shapes.push_back({17, columns});
    }
    shapes.push_back({130, 7168, Layout::strided});
    int64_t call = 0;
    for (const Shape& shape : shapes) {
      const RankTensor y = rank.tensor(dtype, {shape.rows, shape.columns}, shape.layout);
      const int64_t count = shape.rows * shape.columns;
      const std::vector<std::byte> sum = values.sum(ranks, ++call, count);
      for (const std::optional<CommWay> way : ways_of(rank)) {
        const bool large = count > 100000;
        if (large && !exact && way) {
          continue;
        }
        rank.comm->use_only(way);
        rank.set_bytes(y.view(), values.part(rank.comm->rank(), call, count));
        rank.comm->all_reduce_sum(y.view(), rank.exec);
        const std::string what = fmt::format("{} of {} {}{}", way ? name_of(*way) : "sum by size",
                                             name_of(dtype), y.view().shape_string(),
                                             shape.layout == Layout::strided ? " with gaps" : "");
        const bool by_nccl = !exact || (way && *way == CommWay::nccl);
        if (by_nccl && ranks > 2) {
          expect_close(rank, y, sum, what);
        } else {
          expect_bytes(rank, y, sum, what);
        }
      }
    }
    rank.comm->use_only(std::nullopt);
  }
}

void check_gathers(GpuRank& rank) {
  const int ranks = rank.comm->size();
  const auto own = static_cast<size_t>(rank.comm->rank());
  const CommValues values(DType::f32, 2);
  // Columns of each rank: even, uneven, nothing on some.
  const auto even = [](int) { return int64_t{64}; };
  const auto uneven = [](int r) { return int64_t{37 * (r + 1) % 5 * 13 + 1}; };
  const auto first_alone = [](int r) { return int64_t{r == 0 ? 33 : 0}; };
  const auto last_alone = [ranks](int r) { return int64_t{r == ranks - 1 ? 4 : 0}; };
  const auto vocabulary = [ranks](int r) { return int64_t{50257 / ranks + (r == 0 ? 1 : 0)}; };
  int64_t call = 0;
  for (const std::function<int64_t(int)>& columns_of : std::vector<std::function<int64_t(int)>>{
           even, uneven, first_alone, last_alone, vocabulary}) {
    std::vector<int64_t> borders{0};
    for (int r = 0; r < ranks; ++r) {
      borders.push_back(borders.back() + columns_of(r));
    }
    for (const int64_t rows : {1, 3, 33}) {
      for (const Layout layout : {Layout::contiguous, Layout::strided}) {
        for (const bool in_place : {false, true}) {
          const RankTensor whole = rank.tensor(DType::f32, {rows, borders.back()}, layout);
          const RankTensor apart = rank.tensor(DType::f32, {rows, borders[own + 1] - borders[own]},
                                               layout, kMemoryBytes / 2);
          const Tensor part =
              in_place ? whole.view().columns(borders[own], borders[own + 1] - borders[own])
                       : apart.view();
          ++call;
          rank.set_bytes(part, values.part(rank.comm->rank(), call, part.element_count()));
          rank.comm->all_gather(part, borders, whole.view(), rank.exec);
          std::vector<std::byte> expected(static_cast<size_t>(whole.view().bytes()));
          for (int r = 0; r < ranks; ++r) {
            const auto at = static_cast<size_t>(r);
            const int64_t columns = borders[at + 1] - borders[at];
            const std::vector<std::byte> theirs = values.part(r, call, rows * columns);
            for (int64_t row = 0; row < rows; ++row) {
              std::copy_n(theirs.begin() + row * columns * 4, columns * 4,
                          expected.begin() + (row * borders.back() + borders[at]) * 4);
            }
          }
          expect_bytes(rank, whole, expected,
                       fmt::format("{} rows of {} columns gathered{}{}", rows, borders.back(),
                                   in_place ? " in place" : "",
                                   layout == Layout::strided ? " with gaps" : ""));
        }
      }
    }
  }
}

void check_broadcasts(GpuRank& rank) {
  const CommValues values(DType::f16, 3);
  int64_t call = 0;
  for (int root = 0; root < rank.comm->size(); ++root) {
    for (const DType dtype : {DType::f16, DType::u8, DType::i32}) {
      for (const int64_t columns : {1, 31, 512, 70001}) {
        for (const Layout layout : {Layout::contiguous, Layout::strided}) {
          if (dtype == DType::u8 && layout == Layout::strided) {
            continue;
          }
          const RankTensor y = rank.tensor(dtype, {7, columns}, layout);
          ++call;
          const int64_t halves = (y.view().bytes() + 1) / 2;
          const auto bytes_for = [&](int r) {
            std::vector<std::byte> bytes = values.part(r, call, halves);
            bytes.resize(static_cast<size_t>(y.view().bytes()));
            return bytes;
          };
          rank.set_bytes(y.view(), bytes_for(rank.comm->rank()));
          rank.comm->broadcast(y.view(), root, rank.exec);
          expect_bytes(
              rank, y, bytes_for(root),
              fmt::format("{} {} from rank {}", name_of(dtype), y.view().shape_string(), root));
        }
      }
    }
  }
}

void check_random_calls(GpuRank& rank, uint64_t seed, const std::function<bool(int64_t)>& goes_on) {
  constexpr int64_t kBatch = 64;
  constexpr int64_t kMost = 1 << 18;  // elements
  const int ranks = rank.comm->size();
  const DType dtype = DType::f16;
  const CommValues values(dtype, seed);
  const std::vector<std::optional<CommWay>> ways = ways_of(rank);
  Random random(seed);  // the same on all ranks
  std::vector<Tensor> tensors;
  for (int64_t i = 0; i < kBatch; ++i) {
    tensors.push_back(rank.tensor(dtype, {i % 16 == 0 ? kMost : kMost / 64}, Layout::contiguous,
                                  i * kMemoryBytes / kBatch)
                          .view());
  }
  struct Call {
    Tensor y;
    int64_t number = 0;
    int root = -1;  // of a broadcast
  };
  for (int64_t number = 0; goes_on(number);) {
    std::vector<Call> calls;
    for (const Tensor& tensor : tensors) {
      const int64_t most = tensor.size(0);
      // Small ones are as frequent as large ones, and every place of the tensor may be the first.
      const int64_t count = std::max<int64_t>(1, most >> random.below(16));
      Call call{.y = tensor.rows(random.below(most - count + 1), count), .number = number++};
      if (random.below(8) == 0) {
        call.root = static_cast<int>(random.below(ranks));
      }
      calls.push_back(call);
    }
    for (const Call& call : calls) {
      rank.set_bytes(call.y, values.part(rank.comm->rank(), call.number, call.y.element_count()));
    }
    // Enqueued without a pause.
    for (const Call& call : calls) {
      const auto which = static_cast<size_t>(random.below(std::ssize(ways)));
      rank.comm->use_only(ways[which]);
      if (call.root >= 0) {
        rank.comm->broadcast(call.y, call.root, rank.exec);
      } else {
        rank.comm->all_reduce_sum(call.y, rank.exec);
      }
    }
    rank.cuda.synchronize();
    rank.comm->check();
    for (const Call& call : calls) {
      const int64_t count = call.y.element_count();
      const std::vector<std::byte> expected = call.root >= 0
                                                  ? values.part(call.root, call.number, count)
                                                  : values.sum(ranks, call.number, count);
      const std::string wrong = difference(rank.bytes_of(call.y), expected, size_of(dtype));
      require(wrong.empty(), "random call {} (seed {}) of {} elements: {}", call.number, seed,
              count, wrong);
    }
  }
  rank.comm->use_only(std::nullopt);
}

void check_graphs(GpuRank& rank) {
  constexpr int kReplays = 8;
  const int ranks = rank.comm->size();
  for (const std::optional<CommWay> way : ways_of(rank)) {
    if (way && *way == CommWay::nccl) {
      continue;  // graphs hold own kernels alone
    }
    rank.comm->use_only(way);
    for (const int calls : {1, 3, 7}) {
      for (const int64_t count : {5, 7168, 300000}) {
        const RankTensor y = rank.tensor(DType::f32, {count});
        // Whole numbers, so that sums of sums are exact.
        std::vector<float> first(static_cast<size_t>(count));
        std::vector<float> last(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
          float sum = 0.0f;
          for (int r = 0; r < ranks; ++r) {
            const auto value = static_cast<float>((i + r * 3) % 7 - 3);
            sum += value;
            first[static_cast<size_t>(i)] =
                r == rank.comm->rank() ? value : first[static_cast<size_t>(i)];
          }
          last[static_cast<size_t>(i)] = sum;
        }
        const auto bytes = [](const std::vector<float>& floats) {
          const auto view = std::as_bytes(std::span(floats));
          return std::vector<std::byte>(view.begin(), view.end());
        };
        // One sum, and then broadcasts of it, so that values stay small: an odd number of calls.
        // Nobody makes or destroys a graph while others wait in one.
        rank.comm->agree({});
        const CudaGraph graph(rank.cuda, [&] {
          rank.comm->all_reduce_sum(y.view(), rank.exec);
          for (int i = 1; i < calls; ++i) {
            rank.comm->broadcast(y.view(), i % ranks, rank.exec);
          }
        });
        rank.comm->agree({});
        for (int replay = 0; replay < kReplays; ++replay) {
          rank.set_bytes(y.view(), bytes(first));
          graph.launch();
          expect_bytes(rank, y, bytes(last),
                       fmt::format("replay {} of {} calls of {} elements", replay, calls, count));
        }
        // Without waiting: each replay multiplies what is there by the number of ranks.
        rank.set_bytes(y.view(), bytes(first));
        std::vector<float> grown = last;
        for (int replay = 0; replay < kReplays; ++replay) {
          graph.launch();
          for (float& value : grown) {
            value *= replay == 0 ? 1.0f : static_cast<float>(ranks);
          }
        }
        expect_bytes(rank, y, bytes(grown), "replays without waiting");
        rank.comm->agree({});
      }
    }
  }
  rank.comm->use_only(std::nullopt);
}

void check_deferred_sums(GpuRank& rank) {
  constexpr int kTimes = 100;
  constexpr int kLinks = 12;
  const int ranks = rank.comm->size();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const int64_t most = (int64_t{8} << 20) / size_of(dtype);
    const std::array<Tensor, 3> places{
        rank.tensor(dtype, {most}).view(),
        rank.tensor(dtype, {most}, Layout::contiguous, int64_t{10} << 20).view(),
        rank.tensor(dtype, {most}, Layout::contiguous, int64_t{20} << 20).view()};
    require(rank.comm->can_defer(places[0], rank.exec) == (ranks == 2),
            "{} ranks defer sums, or do not", ranks);
    if (ranks != 2) {
      return;
    }
    require(!rank.comm->can_defer(places[0].rows(0, 7), rank.exec), "7 elements can be deferred");

    const CommValues values(dtype, 6);
    Random random(7);  // the same on all ranks
    for (int64_t time = 0; time < kTimes; ++time) {
      std::array<Tensor, 2> sums;
      for (size_t i = 0; i < sums.size(); ++i) {
        // Small ones are as frequent as large ones.
        sums[i] = places[i].rows(0, std::max<int64_t>(8, (most >> random.below(18)) / 8 * 8));
        rank.set_bytes(sums[i], values.part(rank.comm->rank(), 2 * time + static_cast<int64_t>(i),
                                            sums[i].element_count()));
      }
      const Communicator::Deferral deferral(rank.comm.get());
      for (const Tensor& y : sums) {
        rank.comm->all_reduce_sum(y, rank.exec);
      }
      if (time % 3 == 0) {
        rank.comm->broadcast(places[2].rows(0, 1000), static_cast<int>(time % 2), rank.exec);
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        rank.comm->finish_sum(sums[i], rank.exec);
        const std::vector<std::byte> right =
            values.sum(ranks, 2 * time + static_cast<int64_t>(i), sums[i].element_count());
        const std::string wrong = difference(rank.bytes_of(sums[i]), right, size_of(dtype));
        rank.comm->check();
        require(wrong.empty(), "deferred sum {} of {} {}: {}", 2 * time + static_cast<int64_t>(i),
                sums[i].element_count(), name_of(dtype), wrong);
      }
    }

    // Without waiting: each sum is what the next one begins with. Whole numbers are exact.
    const int64_t count = most / 2;
    std::vector<std::byte> first(static_cast<size_t>(count * size_of(dtype)));
    std::vector<std::byte> last = first;
    visit_float(dtype, [&]<class T>(T) {
      for (int64_t i = 0; i < count; ++i) {
        const auto value_of = [&](int r) { return static_cast<float>((i + r * 3) % 7 - 3); };
        const T own = from_float<T>(value_of(rank.comm->rank()));
        const T sum = from_float<T>(std::ldexp(value_of(0) + value_of(1), kLinks - 1));
        const auto at = static_cast<size_t>(i) * sizeof(T);
        std::memcpy(first.data() + at, &own, sizeof(T));
        std::memcpy(last.data() + at, &sum, sizeof(T));
      }
    });
    const std::array<Tensor, 2> chains{places[0].rows(0, count), places[1].rows(0, count)};
    for (const Tensor& y : chains) {
      rank.set_bytes(y, first);
    }
    {
      const Communicator::Deferral deferral(rank.comm.get());
      for (int link = 0; link < kLinks; ++link) {
        for (const Tensor& y : chains) {
          if (link > 0) {
            rank.comm->finish_sum(y, rank.exec);
          }
          rank.comm->all_reduce_sum(y, rank.exec);
        }
      }
      for (const Tensor& y : chains) {
        rank.comm->finish_sum(y, rank.exec);
      }
    }
    for (const Tensor& y : chains) {
      const std::string wrong = difference(rank.bytes_of(y), last, size_of(dtype));
      rank.comm->check();
      require(wrong.empty(), "a chain of deferred sums of {}: {}", name_of(dtype), wrong);
    }
  }
}

}  // namespace sparsellm::testing
