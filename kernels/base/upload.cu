#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/pinned_buffer.h"
#include "kernels/base/upload.h"

namespace sparsellm {
namespace {

// One thread copies some 5 GB/s out of the page cache; a PCIe 5 bus takes 55, and more threads than
// that needs only get into each other's way.
constexpr unsigned kMaxThreads = 12;
// A small model is not worth all the threads and their buffers.
constexpr int64_t kBytesPerThread = 16 * Uploader::kPieceBytes;
constexpr std::chrono::milliseconds kProgressInterval{50};

// Bytes of sources, of all threads.
class ByteCount {
 public:
  void add(int64_t bytes, bool of_file) {
    all_ += bytes;
    of_files_ += of_file ? bytes : 0;
  }
  int64_t all() const { return all_.load(); }
  int64_t of_files() const { return of_files_.load(); }

 private:
  std::atomic<int64_t> all_{0};
  std::atomic<int64_t> of_files_{0};
};

// A page-locked buffer and the copy out of it that is under way.
class StagingBuffer {
 public:
  explicit StagingBuffer(int64_t bytes) : memory_(bytes, "a staging buffer") {
    check_cuda(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming));
  }
  ~StagingBuffer() { cudaEventDestroy(copied_); }
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  // Waits until the buffer may be filled again; what was in it is done.
  void wait(ByteCount& done) {
    if (source_bytes_ > 0) {
      check_cuda(cudaEventSynchronize(copied_));
      done.add(std::exchange(source_bytes_, 0), of_file_);
    }
  }

  // `piece` fits the buffer, which is not being read.
  void copy(const Upload& piece, cudaStream_t stream) {
    read_source(piece, memory_.data());
    if (piece.check) {
      check(piece);
    }
    const int64_t count = piece.bytes() / size_of(piece.from);
    if (count == 0) {  // there was nothing but a check
      return;
    }
    check_cuda(cudaMemcpyAsync(piece.destination, memory_.data(),
                               static_cast<size_t>(count * size_of(piece.to)),
                               cudaMemcpyHostToDevice, stream));
    check_cuda(cudaEventRecord(copied_, stream));
    source_bytes_ = piece.bytes();
    of_file_ = piece.file != nullptr;
  }

 private:
  // What is in the buffer, which only this thread writes, whatever becomes of the source.
  void check(const Upload& piece) const {
    try {
      piece.check({memory_.data(), static_cast<size_t>(piece.bytes())});
    } catch (const Error& error) {
      fail("{}: {}", piece.what, error.what());
    }
  }

  PinnedBuffer memory_;
  cudaEvent_t copied_ = nullptr;
  int64_t source_bytes_ = 0;  // whose copy may be under way
  bool of_file_ = false;
};

// What one thread works with: a stream, and a buffer to fill while the other is copied.
class Lane {
 public:
  Lane(Device device, ByteCount& done) : done_(done) {
    check_cuda(cudaSetDevice(device.index));
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  // Waits, so that no copy outlives its buffer or its destination.
  ~Lane() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void copy(const Upload& piece) {
    std::optional<StagingBuffer>& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    if (!buffer) {
      buffer.emplace(Uploader::kPieceBytes);
    }
    buffer->wait(done_);
    buffer->copy(piece, stream_);
  }

  void drain() {
    for (std::optional<StagingBuffer>& buffer : buffers_) {
      if (buffer) {
        buffer->wait(done_);
      }
    }
  }

 private:
  ByteCount& done_;
  cudaStream_t stream_ = nullptr;
  std::array<std::optional<StagingBuffer>, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace

struct Uploader::State {
  Device device;
  std::vector<Upload> held;
  int64_t submitted_bytes = 0;
  int64_t submitted_file_bytes = 0;
  ByteCount done;
  std::vector<std::thread> threads;

  std::mutex mutex;  // of what follows
  std::condition_variable work;
  std::condition_variable idle;
  std::deque<Upload> queue;
  int busy = 0;  // threads with copies that may be under way
  bool stop = false;
  std::exception_ptr error;

  bool is_idle() const { return queue.empty() && busy == 0; }
  void copy(std::vector<Upload> uploads, const Progress& progress);
  void enqueue(std::vector<Upload> uploads);
  void start_threads();
  void wait(const Progress& progress);
  void break_off() noexcept;
  Upload take();
  void copy_queue(std::optional<Lane>& lane, std::unique_lock<std::mutex>& lock);
  void run_thread();
};

// What fits a staging buffer, from the front of the queue.
Upload Uploader::State::take() {
  Upload& front = queue.front();
  const int64_t most = Uploader::kPieceBytes / size_of(front.to);
  const int64_t in_row = std::ssize(front.source) / size_of(front.from);
  if (front.rows * in_row <= most) {
    Upload last = std::move(front);
    queue.pop_front();
    return last;
  }
  Upload piece = front;
  if (front.rows == 1) {
    const auto source_bytes = static_cast<size_t>(most * size_of(front.from));
    piece.source = front.source.first(source_bytes);
    front.source = front.source.subspan(source_bytes);
  } else {
    piece.rows = std::max(most / in_row, int64_t{1});
    front.source = front.row(piece.rows);
    front.rows -= piece.rows;
  }
  const int64_t copied = piece.bytes() / size_of(front.from) * size_of(front.to);
  front.destination = static_cast<std::byte*>(front.destination) + copied;
  if (piece.bytes() / size_of(front.from) > most) {  // a row that is cut itself
    queue.push_front(std::move(piece));
    return take();
  }
  return piece;
}

// Until nothing is left in the queue, and nothing under way.
void Uploader::State::copy_queue(std::optional<Lane>& lane, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  if (!lane) {
    lane.emplace(device, done);
  }
  lock.lock();
  while (!queue.empty()) {
    const Upload piece = take();
    lock.unlock();
    lane->copy(piece);
    lock.lock();
  }
  lock.unlock();
  lane->drain();
  lock.lock();
}

void Uploader::State::run_thread() {
  std::optional<Lane> lane;
  std::unique_lock lock(mutex);
  while (true) {
    work.wait(lock, [&] { return stop || !queue.empty(); });
    if (stop) {
      return;
    }
    ++busy;
    try {
      copy_queue(lane, lock);
    } catch (...) {
      if (lock.owns_lock()) {
        lock.unlock();
      }
      lane.reset();  // its copies are done before the caller hears of the error
      lock.lock();
      if (!error) {
        error = std::current_exception();
      }
      queue.clear();
    }
    --busy;
    if (is_idle()) {
      idle.notify_all();
    }
  }
}

void Uploader::State::copy(std::vector<Upload> uploads, const Progress& progress) {
  std::sort(uploads.begin(), uploads.end(), is_read_before);
  try {
    enqueue(std::move(uploads));
    wait(progress);
  } catch (...) {
    break_off();
    throw;
  }
}

void Uploader::State::enqueue(std::vector<Upload> uploads) {
  if (uploads.empty()) {
    return;
  }
  {
    const std::lock_guard lock(mutex);
    std::move(uploads.begin(), uploads.end(), std::back_inserter(queue));
  }
  start_threads();
  work.notify_all();
}

void Uploader::State::start_threads() {
  const int64_t most = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const int64_t wanted = std::min(most, submitted_bytes / kBytesPerThread + 1);
  try {
    while (std::ssize(threads) < wanted) {
      threads.emplace_back([this] { run_thread(); });
    }
  } catch (const std::system_error& failure) {
    fail("cannot start {} threads for an upload: {}", wanted, failure.what());
  }
}

void Uploader::State::wait(const Progress& progress) {
  const auto report = [&] {
    if (progress) {
      progress();
    }
  };
  report();
  std::unique_lock lock(mutex);
  while (!idle.wait_for(lock, kProgressInterval, [&] { return is_idle(); })) {
    lock.unlock();
    report();
    lock.lock();
  }
  if (error) {
    std::rethrow_exception(std::exchange(error, nullptr));
  }
  lock.unlock();
  report();
}

// Waits for the copies that are under way.
void Uploader::State::break_off() noexcept {
  std::unique_lock lock(mutex);
  queue.clear();
  idle.wait(lock, [&] { return is_idle(); });
  error = nullptr;
  held.clear();
  submitted_bytes = done.all();
  submitted_file_bytes = done.of_files();
}

Uploader::Uploader(Device device) : state_(std::make_unique<State>()) {
  require(device.is_cuda(), "an upload to {}", to_string(device));
  state_->device = device;
}

Uploader::~Uploader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

void Uploader::submit(Upload upload) {
  State& state = *state_;
  const int64_t bytes = upload.bytes();
  require(bytes % size_of(upload.from) == 0, "{}: {} bytes are no whole number of {}", upload.what,
          bytes, name_of(upload.from));
  require(!upload.check || (bytes <= kPieceBytes && upload.from == upload.to),
          "{}: {} bytes of {} are more than a check takes at once, or are converted", upload.what,
          bytes, name_of(upload.from));
  if (bytes == 0 && !upload.check) {
    return;
  }
  const bool of_file = upload.file != nullptr;
  state.held.push_back(std::move(upload));
  state.submitted_bytes += bytes;
  state.submitted_file_bytes += of_file ? bytes : 0;
}

int64_t Uploader::held() const { return std::ssize(state_->held); }

void Uploader::drop(int64_t first) noexcept {
  State& state = *state_;
  while (std::ssize(state.held) > first) {
    const Upload& last = state.held.back();
    state.submitted_bytes -= last.bytes();
    state.submitted_file_bytes -= last.file != nullptr ? last.bytes() : 0;
    state.held.pop_back();
  }
}

void Uploader::finish(const Progress& progress) {
  state_->copy(std::exchange(state_->held, {}), progress);
}

void Uploader::flush(int64_t first) {
  std::vector<Upload>& held = state_->held;
  require(first >= 0 && first <= std::ssize(held), "{} uploads of {} were held", first,
          held.size());
  const auto begin = held.begin() + first;
  std::vector<Upload> now(std::make_move_iterator(begin), std::make_move_iterator(held.end()));
  held.erase(begin, held.end());
  state_->copy(std::move(now), {});
}

Uploader::Bytes Uploader::bytes() const {
  return {.submitted = state_->submitted_bytes, .done = state_->done.all()};
}

Uploader::Bytes Uploader::file_bytes() const {
  return {.submitted = state_->submitted_file_bytes, .done = state_->done.of_files()};
}

}  // namespace sparsellm
