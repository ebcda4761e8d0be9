#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/upload.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kMiB = 1 << 20;
constexpr std::byte kPoison{0xa5};

// Cheap bytes whose 64-bit words all differ.
std::vector<std::byte> pattern(int64_t bytes, uint64_t seed) {
  std::vector<std::byte> result(static_cast<size_t>(bytes));
  uint64_t word = seed;
  for (size_t i = 0; i < result.size(); i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(result.data() + i, &word, std::min(sizeof(word), result.size() - i));
  }
  return result;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// Memory on the GPU between poisoned guards.
class Target {
 public:
  explicit Target(int64_t bytes) : bytes_(bytes), buffer_(kGpu, bytes + 2 * kGuard, "a test") {
    fill(kPoison);
  }

  std::byte* data() const { return static_cast<std::byte*>(buffer_.data()) + kGuard; }

  void fill(std::byte value) {
    const std::vector<std::byte> all(static_cast<size_t>(buffer_.bytes()), value);
    copy_bytes(kGpu, buffer_.data(), {}, all.data(), buffer_.bytes());
    // A copy of pageable memory may end after its call; one back waits for it.
    std::byte first;
    copy_bytes({}, &first, kGpu, buffer_.data(), 1);
  }

  // What is there now, the guards checked against `guard`.
  std::vector<std::byte> read(std::byte guard = kPoison) const {
    std::vector<std::byte> all(static_cast<size_t>(buffer_.bytes()));
    copy_bytes({}, all.data(), kGpu, buffer_.data(), buffer_.bytes());
    const auto is_guard = [&](std::byte b) { return b == guard; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, is_guard));
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), is_guard));
    return {all.begin() + kGuard, all.begin() + kGuard + bytes_};
  }

 private:
  static constexpr int64_t kGuard = 61;  // makes the destinations unaligned

  int64_t bytes_;
  Buffer buffer_;
};

Upload copy_of(std::span<const std::byte> source, void* destination) {
  return {.what = "a test",
          .source = source,
          .from = DType::i32,
          .destination = destination,
          .to = DType::i32};
}

Upload conversion_of(std::span<const std::byte> source, DType from, void* destination, DType to) {
  return {.what = "a test", .source = source, .from = from, .destination = destination, .to = to};
}

class GpuUpload : public GpuTest {};

TEST_F(GpuUpload, AnySize) {
  Uploader uploader(kGpu);
  uploader.finish();  // nothing
  for (int64_t bytes : {int64_t{0}, int64_t{2}, int64_t{6}, kMiB + 2, 8 * kMiB, 8 * kMiB + 2,
                        16 * kMiB - 2, 100 * kMiB, 100 * kMiB + 6}) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> source = pattern(bytes + 1, static_cast<uint64_t>(bytes));
    const auto unaligned = std::span(source).subspan(1);
    Target target(bytes);
    uploader.submit(conversion_of(unaligned, DType::f16, target.data(), DType::f16));
    int64_t done = 0;
    uploader.finish([&] {
      EXPECT_GE(uploader.bytes().done, done);
      done = uploader.bytes().done;
    });
    EXPECT_TRUE(same(target.read(), unaligned));
  }
}

// Some columns of each row of a matrix, of a file and of memory, converted and not: rows of which
// many fit a buffer, and one that does not.
TEST_F(GpuUpload, RowsThatAreApart) {
  const TempDir folder;
  struct Shape {
    int64_t rows;
    int64_t columns;  // of f32
    int64_t first;
    int64_t count;
  };
  for (const Shape& shape :
       {Shape{1, 7, 2, 3}, Shape{5, 7, 0, 7}, Shape{3000, 700, 64, 320},
        Shape{3, kMiB, 1, kMiB - 2}, Shape{2, 600'001, 5, 524'288}, Shape{0, 7, 1, 2}}) {
    SCOPED_TRACE(shape.rows);
    std::vector<float> values(static_cast<size_t>(shape.rows * shape.columns));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 2003);
    }
    const auto bytes = std::as_bytes(std::span(values));
    const MappedFile file(folder.write(
        "data", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + "end."));
    for (const bool of_file : {false, true}) {
      for (const DType to : {DType::f32, DType::f16}) {
        std::vector<std::byte> expected;
        for (int64_t row = 0; row < shape.rows; ++row) {
          for (int64_t i = 0; i < shape.count; ++i) {
            const float value = values[static_cast<size_t>(row * shape.columns + shape.first + i)];
            const Half half = to_half(value);
            const auto number = to == DType::f32 ? std::as_bytes(std::span(&value, 1))
                                                 : std::as_bytes(std::span(&half, 1));
            expected.insert(expected.end(), number.begin(), number.end());
          }
        }
        Target target(std::ssize(expected));
        Uploader uploader(kGpu);
        const std::span<const std::byte> all = of_file ? file.bytes() : bytes;
        Upload upload =
            conversion_of(shape.rows == 0 ? std::span<const std::byte>()
                                          : all.subspan(static_cast<size_t>(shape.first * 4),
                                                        static_cast<size_t>(shape.count * 4)),
                          DType::f32, target.data(), to);
        upload.rows = shape.rows;
        upload.pitch = shape.columns * 4;
        upload.file = of_file ? &file : nullptr;
        uploader.submit(std::move(upload));
        EXPECT_EQ(uploader.bytes().submitted, 4 * shape.rows * shape.count);
        uploader.finish();
        EXPECT_EQ(uploader.bytes().done, 4 * shape.rows * shape.count);
        EXPECT_TRUE(same(target.read(), expected));
      }
    }
  }
}

TEST_F(GpuUpload, CountsTheBytesOfSources) {
  Uploader uploader(kGpu);
  const auto expect_bytes = [&](int64_t submitted, int64_t done) {
    EXPECT_EQ(uploader.bytes().submitted, submitted);
    EXPECT_EQ(uploader.bytes().done, done);
  };
  Target target(20 * kMiB);
  const std::vector<std::byte> source = pattern(40 * kMiB, 1);
  int calls = 0;
  int64_t last = -1;
  const auto progress = [&] {
    ++calls;
    last = uploader.bytes().done;
  };
  uploader.finish(progress);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(last, 0);
  const std::vector<std::byte> zeros(source.size());
  uploader.submit(conversion_of(zeros, DType::f32, target.data(), DType::bf16));
  expect_bytes(40 * kMiB, 0);
  uploader.finish(progress);
  EXPECT_EQ(last, 40 * kMiB);
  expect_bytes(40 * kMiB, 40 * kMiB);
  uploader.submit(copy_of(std::span(source).first(4096), target.data()));
  uploader.finish(progress);
  expect_bytes(40 * kMiB + 4096, 40 * kMiB + 4096);
  EXPECT_EQ(last, 40 * kMiB + 4096);
  EXPECT_EQ(uploader.file_bytes().submitted, 0);

  // What is broken off does not count.
  uploader.submit(copy_of(source, target.data()));
  EXPECT_THROW(uploader.finish([] { fail("cancelled"); }), Error);
  EXPECT_EQ(uploader.bytes().submitted, uploader.bytes().done);
}

TEST_F(GpuUpload, CountsTheBytesOfFiles) {
  const TempDir folder;
  const MappedFile file(folder.write("data", std::string(4096, 'a')));
  const std::vector<std::byte> source = pattern(1024, 1);
  Target target(4096);
  Uploader uploader(kGpu);
  Upload of_file = copy_of(file.bytes(), target.data());
  of_file.file = &file;
  uploader.submit(of_file);
  uploader.submit(copy_of(source, target.data()));
  EXPECT_EQ(uploader.bytes().submitted, 5120);
  EXPECT_EQ(uploader.file_bytes().submitted, 4096);
  EXPECT_EQ(uploader.file_bytes().done, 0);
  uploader.flush(1);
  EXPECT_EQ(uploader.bytes().done, 1024);
  EXPECT_EQ(uploader.file_bytes().done, 0);
  uploader.finish();
  EXPECT_EQ(uploader.bytes().done, 5120);
  EXPECT_EQ(uploader.file_bytes().done, 4096);
}

// All goes at the end, in the order of the sources; what is needed before, at once and alone.
TEST_F(GpuUpload, HoldsUploads) {
  constexpr int64_t kPiece = 4096;
  constexpr size_t kPieces = 6;
  const std::vector<std::byte> source = pattern(kPieces * kPiece, 2);
  const std::vector<std::byte> nothing(static_cast<size_t>(kPiece), kPoison);
  const auto piece = [&](const std::vector<std::byte>& of, size_t i) {
    return std::span(of).subspan(i * kPiece, kPiece);
  };
  Target target(kPieces * kPiece);
  Uploader uploader(kGpu);
  std::mutex mutex;
  std::vector<size_t> copied;
  const auto submit = [&](size_t i) {
    Upload upload = copy_of(piece(source, i), target.data() + static_cast<int64_t>(i) * kPiece);
    upload.check = [&, i](std::span<const std::byte>) {
      const std::lock_guard lock(mutex);
      copied.push_back(i);
    };
    uploader.submit(std::move(upload));
  };
  const auto expect_there = [&](const std::vector<size_t>& there) {
    const std::vector<std::byte> now = target.read();
    for (size_t i = 0; i < kPieces; ++i) {
      const bool is_there = std::find(there.begin(), there.end(), i) != there.end();
      EXPECT_TRUE(same(piece(now, i), is_there ? piece(source, i) : std::span(nothing))) << i;
    }
  };
  submit(5);
  submit(0);
  submit(3);
  EXPECT_EQ(uploader.held(), 3);
  expect_there({});
  submit(4);
  submit(1);
  uploader.flush(3);
  EXPECT_EQ(uploader.held(), 3);
  EXPECT_EQ(copied, (std::vector<size_t>{1, 4}));
  expect_there({1, 4});
  uploader.flush(3);  // nothing
  submit(2);
  uploader.finish();
  EXPECT_EQ(uploader.held(), 0);
  EXPECT_EQ(copied, (std::vector<size_t>{1, 4, 0, 2, 3, 5}));
  expect_there({0, 1, 2, 3, 4, 5});
  EXPECT_THROW(uploader.flush(1), Error);
}

TEST_F(GpuUpload, AnErrorBreaksOffWhatIsHeld) {
  const std::vector<std::byte> source = pattern(4096, 2);
  Target target(4096);
  Uploader uploader(kGpu);
  uploader.submit(copy_of(source, target.data()));
  Upload bad = copy_of(source, target.data());
  bad.check = [](std::span<const std::byte>) { fail("it is bad"); };
  uploader.submit(bad);
  EXPECT_TRUE(throws_error([&] { uploader.flush(1); }, "a test: it is bad"));
  EXPECT_EQ(uploader.held(), 0);
  EXPECT_EQ(uploader.bytes().submitted, 0);
  uploader.finish();
  EXPECT_EQ(target.read(), std::vector<std::byte>(4096, kPoison));
}

TEST_F(GpuUpload, RefusesPartsOfNumbers) {
  Uploader uploader(kGpu);
  const std::vector<std::byte> source(7);
  Target target(8);
  EXPECT_TRUE(throws_error([&] { uploader.submit(copy_of(source, target.data())); }, "a test"));
  EXPECT_TRUE(throws_error([] { Uploader on_cpu(Device{}); }, "cpu"));
}

// Every 16-bit number, or f32 of every kind; none that is finite and too large for `to`.
std::vector<std::byte> numbers(DType from, DType to) {
  std::vector<std::byte> bytes;
  Random random(9);
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const auto bits =
        static_cast<uint32_t>(from == DType::f32 ? random.below(int64_t{1} << 32) : i);
    visit_float(from, [&]<class From>(From value) {
      std::memcpy(&value, &bits, sizeof(value));
      bool fits = true;
      visit_float(to, [&]<class To>(To) {
        const float before = to_float(value);
        fits = !std::isfinite(before) || std::isfinite(to_float(from_float<To>(before)));
      });
      if (fits) {
        const auto* begin = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), begin, begin + sizeof(value));
      }
    });
  }
  return bytes;
}

TEST_F(GpuUpload, ConvertsAsTheCpu) {
  Uploader uploader(kGpu);
  for (DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (DType to : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      const std::vector<std::byte> source = numbers(from, to);
      const int64_t count = std::ssize(source) / size_of(from);
      std::vector<std::byte> expected = source;  // NaNs too, if the dtype stays
      expected.resize(static_cast<size_t>(count * size_of(to)));
      visit_float(from, [&]<class From>(From value) {
        visit_float(to, [&]<class To>(To) {
          for (int64_t i = 0; from != to && i < count; ++i) {
            std::memcpy(&value, source.data() + i * size_of(from), sizeof(value));
            const To rounded = from_float<To>(to_float(value));
            std::memcpy(expected.data() + i * size_of(to), &rounded, sizeof(rounded));
          }
        });
      });
      Target target(std::ssize(expected));
      uploader.submit(conversion_of(source, from, target.data(), to));
      uploader.finish();
      EXPECT_TRUE(target.read() == expected);
    }
  }
}

TEST_F(GpuUpload, ConvertsAcrossPieces) {
  constexpr int64_t kCount = 12 * kMiB + 5;
  std::vector<std::byte> source(static_cast<size_t>(kCount) * sizeof(BFloat16));
  for (int64_t i = 0; i < kCount; ++i) {
    const BFloat16 value = to_bfloat16(static_cast<float>(i % 251));
    std::memcpy(source.data() + i * 2, &value, sizeof(value));
  }
  Target target(kCount * size_of(DType::f32));
  Uploader uploader(kGpu);
  uploader.submit(conversion_of(source, DType::bf16, target.data(), DType::f32));
  uploader.finish();
  const std::vector<std::byte> result = target.read();
  for (int64_t i = 0; i < kCount; ++i) {
    float value = 0.0f;
    std::memcpy(&value, result.data() + i * 4, sizeof(value));
    ASSERT_EQ(value, static_cast<float>(i % 251)) << i;
  }
}

TEST_F(GpuUpload, ManySmallOnesBetweenLargeOnes) {
  constexpr int64_t kSmall = 2000;
  const std::vector<std::byte> source = pattern(60 * kMiB, 3);
  Target target(std::ssize(source));
  Uploader uploader(kGpu);
  for (int round = 0; round < 2; ++round) {
    int64_t begin = 0;
    const auto submit = [&](int64_t bytes) {
      uploader.submit(
          copy_of(std::span(source).subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes)),
                  target.data() + begin));
      begin += bytes;
    };
    for (int64_t i = 0; i < kSmall; ++i) {
      submit(4 * (i % 300));
      if (i % 500 == 250) {
        submit(9 * kMiB);
      }
    }
    submit(std::ssize(source) - begin);
    uploader.finish();
    EXPECT_TRUE(target.read() == source);
    target.fill(kPoison);
  }
}

TEST_F(GpuUpload, ReadsMappedFiles) {
  const TempDir folder;
  const std::vector<std::byte> bytes = pattern(30 * kMiB + 4, 4);
  const MappedFile file(folder.write(
      "data", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
  Target target(std::ssize(bytes));
  Uploader uploader(kGpu);
  Upload upload = copy_of(file.bytes(), target.data());
  upload.file = &file;
  uploader.submit(upload);
  uploader.finish();
  EXPECT_TRUE(target.read() == bytes);
  EXPECT_TRUE(same(file.bytes(), bytes));

  std::filesystem::resize_file(file.path(), static_cast<uintmax_t>(20 * kMiB));
  uploader.submit(upload);
  EXPECT_TRUE(throws_error([&] { uploader.finish(); }, "it has become shorter"));
}

TEST_F(GpuUpload, AnErrorBreaksOffTheOthers) {
  std::vector<float> values(static_cast<size_t>(30 * kMiB) / sizeof(float), 1.0f);
  const auto source = std::as_bytes(std::span(values));
  Target target(60 * kMiB);
  Uploader uploader(kGpu);
  for (size_t at : {size_t{0}, size_t{5'000'001}, values.size() - 1}) {
    values[at] = -70000.0f;
    Upload bad = conversion_of(source, DType::f32, target.data(), DType::f16);
    bad.what = "model.layers.3.weight";
    uploader.submit(bad);
    uploader.submit(copy_of(source, target.data() + 15 * kMiB));
    const std::string message = "model.layers.3.weight: the value -70000 is too large for f16";
    EXPECT_TRUE(throws_error([&] { uploader.finish(); }, message));
    target.fill(std::byte{1});
    EXPECT_EQ(target.read(std::byte{1}), std::vector<std::byte>(60 * kMiB, std::byte{1}));
    values[at] = 1.0f;
  }
  // It can be used again.
  uploader.submit(copy_of(source, target.data()));
  uploader.finish();
  std::vector<std::byte> result = target.read(std::byte{1});
  result.resize(source.size());
  EXPECT_TRUE(same(result, source));
}

TEST_F(GpuUpload, ChecksWhatIsCopied) {
  const std::vector<std::byte> source = pattern(9 * Uploader::kPieceBytes + 12, 8);
  const auto piece_of = [&](int64_t begin) {
    const int64_t bytes = std::min(Uploader::kPieceBytes, std::ssize(source) - begin);
    return std::span(source).subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  };
  Target target(std::ssize(source));
  Uploader uploader(kGpu);
  std::atomic<int> checked{0};
  const auto submit = [&](int64_t bad) {
    for (int64_t begin = 0; begin < std::ssize(source); begin += Uploader::kPieceBytes) {
      const auto piece = piece_of(begin);
      Upload upload = copy_of(piece, target.data() + begin);
      upload.what = fmt::format("piece {}", begin / Uploader::kPieceBytes);
      upload.check = [&checked, piece, is_bad = begin == bad * Uploader::kPieceBytes](
                         std::span<const std::byte> bytes) {
        EXPECT_TRUE(same(bytes, piece));
        ++checked;
        require(!is_bad, "it is bad");
      };
      uploader.submit(std::move(upload));
    }
  };
  submit(-1);
  uploader.finish();
  EXPECT_EQ(checked, 10);
  EXPECT_TRUE(target.read() == source);
  for (int64_t bad : {0, 5, 9}) {
    target.fill(kPoison);
    submit(bad);
    EXPECT_TRUE(throws_error([&] { uploader.finish(); }, fmt::format("piece {}: it is bad", bad)));
    const std::vector<std::byte> result = target.read();
    const auto begin = result.begin() + bad * Uploader::kPieceBytes;
    const auto bytes =
        std::min(Uploader::kPieceBytes, std::ssize(source) - (begin - result.begin()));
    EXPECT_TRUE(std::all_of(begin, begin + bytes, [](std::byte b) { return b == kPoison; }));
  }

  Upload upload = copy_of(source, target.data());
  upload.check = [](std::span<const std::byte>) {};
  EXPECT_TRUE(throws_error([&] { uploader.submit(upload); }, "more than a check takes"));
  upload = conversion_of(piece_of(0), DType::f32, target.data(), DType::f16);
  upload.check = [](std::span<const std::byte>) {};
  EXPECT_TRUE(throws_error([&] { uploader.submit(upload); }, "or are converted"));
}

// An upload of no bytes is still checked: its caller counts on it.
TEST_F(GpuUpload, ChecksNoBytes) {
  Uploader uploader(kGpu);
  std::atomic<int> checked{0};
  const auto submit = [&](bool bad) {
    Upload upload = copy_of({}, nullptr);
    upload.what = "an empty piece";
    upload.check = [&checked, bad](std::span<const std::byte> bytes) {
      EXPECT_TRUE(bytes.empty());
      ++checked;
      require(!bad, "it is bad");
    };
    uploader.submit(std::move(upload));
  };
  submit(false);
  uploader.finish();
  EXPECT_EQ(checked, 1);
  submit(true);
  EXPECT_TRUE(throws_error([&] { uploader.finish(); }, "an empty piece: it is bad"));
  EXPECT_EQ(checked, 2);

  // Between others, which arrive.
  const std::vector<std::byte> source = pattern(3 * Uploader::kPieceBytes, 9);
  Target target(std::ssize(source));
  uploader.submit(copy_of(source, target.data()));
  submit(false);
  uploader.submit(copy_of({}, nullptr));
  uploader.finish();
  EXPECT_EQ(checked, 3);
  EXPECT_TRUE(target.read() == source);
}

TEST_F(GpuUpload, RefusesToConvertIntegers) {
  const std::vector<std::byte> source(64);
  Target target(64);
  Uploader uploader(kGpu);
  uploader.submit(conversion_of(source, DType::i32, target.data(), DType::f16));
  EXPECT_TRUE(throws_error([&] { uploader.finish(); }, "i32"));
}

TEST_F(GpuUpload, DropsUploads) {
  const std::vector<std::byte> source = pattern(8192, 2);
  const auto first = std::span(source).first(4096);
  Target target(8192);
  Uploader uploader(kGpu);
  uploader.submit(copy_of(first, target.data()));
  uploader.submit(copy_of(source, target.data()));
  uploader.drop(2);
  EXPECT_EQ(uploader.held(), 2);
  uploader.drop(1);
  EXPECT_EQ(uploader.held(), 1);
  EXPECT_EQ(uploader.bytes().submitted, 4096);
  uploader.finish();
  const std::vector<std::byte> result = target.read();
  EXPECT_TRUE(same(std::span(result).first(4096), first));
  EXPECT_EQ(std::vector<std::byte>(result.begin() + 4096, result.end()),
            std::vector<std::byte>(4096, kPoison));
}

TEST_F(GpuUpload, DropsWhatIsHeldWithTheUploader) {
  const std::vector<std::byte> source = pattern(60 * kMiB, 5);
  Target target(std::ssize(source));
  for (int round = 0; round < 3; ++round) {
    {
      Uploader uploader(kGpu);
      uploader.submit(copy_of(source, target.data()));
      uploader.submit(copy_of({}, nullptr));
      uploader.flush(1);
    }
    EXPECT_EQ(target.read(), std::vector<std::byte>(source.size(), kPoison));
  }
}

TEST_F(GpuUpload, AnExceptionOfTheCaller) {
  const std::vector<std::byte> source = pattern(100 * kMiB, 6);
  Target target(std::ssize(source));
  const auto upload = [&] {
    Uploader uploader(kGpu);
    uploader.submit(copy_of(source, target.data()));
    uploader.finish([] { fail("cancelled"); });
  };
  EXPECT_TRUE(throws_error(upload, "cancelled"));
}

// What is broken off writes nothing any more when finish() has thrown, and the uploader can be used
// again.
TEST_F(GpuUpload, AnExceptionOfProgressLeavesNothingUnderWay) {
  struct Cancelled {};
  const std::vector<std::byte> source = pattern(60 * kMiB, 7);
  Target target(std::ssize(source));
  Uploader uploader(kGpu);
  for (int round = 0; round < 5; ++round) {
    uploader.submit(copy_of(source, target.data()));
    int64_t calls = 0;
    const auto cancel = [&] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      throw Cancelled();
    };
    EXPECT_THROW(uploader.finish(cancel), Cancelled);
    EXPECT_EQ(calls, 1);
    target.fill(kPoison);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(target.read(), std::vector<std::byte>(source.size(), kPoison));
  }
  uploader.submit(copy_of(source, target.data()));
  uploader.finish();
  EXPECT_TRUE(target.read() == source);
}

}  // namespace
}  // namespace sparsellm
