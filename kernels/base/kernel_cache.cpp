#include "kernels/base/kernel_cache.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/file_replacement.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "numbers are written as they are");

constexpr std::string_view kCodeMagic = "SpKernel";
constexpr uint32_t kCodeVersion = 1;
constexpr int64_t kMaxCodeFile = 64 << 20;

using Code = std::vector<std::byte>;
// Empty if it could not be: whoever has waited for it tries it again.
using Made = std::optional<Code>;
using CodeDigest = std::array<uint64_t, 2>;  // the low half first

// FNV-1a of 128 bits: it tells accidents apart, not attacks.
class CodeKey {
 public:
  // With its length, so that the parts of a key cannot be taken for others.
  void add(std::string_view text) {
    add_number(text.size());
    for (const char c : text) {
      add_byte(static_cast<unsigned char>(c));
    }
  }
  void add_number(uint64_t number) {
    for (size_t i = 0; i < sizeof(number); ++i) {
      add_byte(static_cast<unsigned char>(number >> (8 * i)));
    }
  }
  CodeDigest digest() const {
    return {static_cast<uint64_t>(hash_), static_cast<uint64_t>(hash_ >> 64)};
  }

 private:
  using Hash = unsigned __int128;

  void add_byte(unsigned char byte) {
    constexpr Hash kPrime = (Hash{1} << 88) + 0x13b;
    hash_ = (hash_ ^ byte) * kPrime;
  }

  Hash hash_ = (Hash{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
};

CodeDigest digest_of(const KernelSource& source, std::string_view compiler) {
  CodeKey key;
  key.add(compiler);
  key.add(source.name);
  key.add(source.text);
  key.add_number(static_cast<uint64_t>(source.architecture));
  key.add_number(source.defines.size());
  for (const std::string& define : source.defines) {
    key.add(define);
  }
  return key.digest();
}

// What is before the code in a file.
struct CodeHeader {
  std::array<char, kCodeMagic.size()> magic;
  uint32_t version;
  uint32_t checksum;
  CodeDigest digest;
  uint64_t bytes;
};
static_assert(sizeof(CodeHeader) == 40, "nothing between its members");

uint32_t checksum_of(const CodeHeader& header, std::span<const std::byte> code) {
  constexpr size_t kBegin = offsetof(CodeHeader, digest);
  const auto all = std::as_bytes(std::span(&header, 1));
  return crc32c(code, crc32c(all.subspan(kBegin)));
}

CodeHeader header_of(const CodeDigest& digest, std::span<const std::byte> code) {
  CodeHeader header{
      .magic = {}, .version = kCodeVersion, .checksum = 0, .digest = digest, .bytes = code.size()};
  kCodeMagic.copy(header.magic.data(), kCodeMagic.size());
  header.checksum = checksum_of(header, code);
  return header;
}

// The code in a file of that text; throws Error for anything else.
Code parse_code(std::string_view text, const CodeDigest& digest, const fs::path& path) {
  CodeHeader header{};
  require(text.size() >= sizeof(header) && text.starts_with(kCodeMagic), "{} is no compiled kernel",
          path.string());
  std::memcpy(&header, text.data(), sizeof(header));
  require(header.version == kCodeVersion, "{} has version {}; supported is {}", path.string(),
          header.version, kCodeVersion);
  const auto code = std::as_bytes(std::span(text.substr(sizeof(header))));
  require(header.bytes == code.size(), "{} has {} bytes of code; its header says {}", path.string(),
          code.size(), header.bytes);
  require(header.checksum == checksum_of(header, code), "{} is damaged: its checksum differs",
          path.string());
  require(header.digest == digest, "{} is of another kernel", path.string());
  return {code.begin(), code.end()};
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void write_code(const fs::path& path, const CodeDigest& digest, const Code& code) {
  std::error_code unknown;  // the opening of the file tells
  fs::create_directories(path.parent_path(), unknown);
  const CodeHeader header = header_of(digest, code);
  FileReplacement file(path);
  file.write(as_text(std::as_bytes(std::span(&header, 1))));
  file.write(as_text(code));
  file.commit();  // of one that a crash leaves empty the checksum tells
}

}  // namespace

struct KernelCache::State {
  KernelCompiler& compiler;
  const Options options;

  State(KernelCompiler& by, Options how) : compiler(by), options(std::move(how)) {}

  // What another thread makes, or has made; else that of `promise`, which is the caller's to keep.
  std::pair<std::shared_future<Made>, bool> find_or_add(const CodeDigest& digest,
                                                        std::promise<Made>& promise) {
    const std::lock_guard lock(mutex_);
    const auto found = codes_.find(digest);
    if (found != codes_.end()) {
      return {found->second, false};
    }
    return {codes_.emplace(digest, promise.get_future().share()).first->second, true};
  }

  void remove(const CodeDigest& digest) {
    const std::lock_guard lock(mutex_);
    codes_.erase(digest);
  }

  Code make(const KernelSource& source, const CodeDigest& digest) {
    const fs::path path = path_of(digest);
    std::optional<Code> read = read_file(path, digest);
    if (read) {
      return std::move(*read);
    }
    Code code = compiler.compile(source);
    write_file(path, digest, code);
    return code;
  }

 private:
  fs::path path_of(const CodeDigest& digest) const {
    return options.directory.empty()
               ? fs::path()
               : options.directory / fmt::format("{:016x}{:016x}.kernel", digest[1], digest[0]);
  }

  std::optional<Code> read_file(const fs::path& path, const CodeDigest& digest) const {
    std::error_code unknown;
    if (path.empty() || fs::status(path, unknown).type() == fs::file_type::not_found) {
      return std::nullopt;
    }
    try {
      return parse_code(read_text_file(path, kMaxCodeFile), digest, path);
    } catch (const Error& error) {
      warn(fmt::format("{}; it is compiled again", error.what()));
      return std::nullopt;
    }
  }

  void write_file(const fs::path& path, const CodeDigest& digest, const Code& code) {
    if (path.empty() || !writes_) {
      return;
    }
    try {
      write_code(path, digest, code);
    } catch (const Error& error) {
      if (writes_.exchange(false)) {
        warn(fmt::format("{}; no more kernels are kept", error.what()));
      }
    }
  }

  void warn(const std::string& line) const {
    if (options.warn) {
      options.warn(line);
    }
  }

  std::atomic<bool> writes_ = true;
  std::mutex mutex_;  // of `codes_`
  std::map<CodeDigest, std::shared_future<Made>> codes_;
};

KernelCache::KernelCache(KernelCompiler& compiler, Options options)
    : state_(std::make_unique<State>(compiler, std::move(options))) {}
KernelCache::~KernelCache() = default;

std::span<const std::byte> KernelCache::get(const KernelSource& source) {
  const CodeDigest digest = digest_of(source, state_->compiler.version());
  while (true) {
    std::promise<Made> promise;
    const auto [made, is_first] = state_->find_or_add(digest, promise);
    if (is_first) {
      try {
        promise.set_value(state_->make(source, digest));
      } catch (...) {
        state_->remove(digest);
        promise.set_value(std::nullopt);
        throw;
      }
    }
    if (const Made& code = made.get()) {
      return *code;  // `codes_` has it, too
    }
  }
}

fs::path kernel_cache_directory(const fs::path& tune_cache) {
  fs::path directory = tune_cache;
  if (!directory.empty()) {
    directory += ".compiled";
  }
  return directory;
}

}  // namespace sparsellm
