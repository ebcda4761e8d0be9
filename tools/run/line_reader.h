#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {

// Reads the lines of a regular file of any size, in memory for one line of at most `max_bytes`.
class LineReader {
 public:
  struct Line {
    int64_t number = 0;     // the first is 1
    std::string_view text;  // without its end (\n or \r\n); valid until the next call
    bool too_long = false;  // text is only the first max_bytes
    bool has_end = true;    // false for a last line without \n
    char last = '\0';       // the byte in front of \n, also of a line that is too long
  };

  // Throws Error naming the path and the reason.
  LineReader(const std::filesystem::path& path, int64_t max_bytes);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // False at the end of the file.
  bool next(Line& line);
  int64_t offset() const { return offset_; }       // of the byte after the last line
  uint32_t checksum() const { return checksum_; }  // CRC-32C of the bytes in front of it
  void rewind();

  // Whether `path` is a name of the file that is read, or a link to it.
  bool is_file(const std::filesystem::path& path) const;
  // Whether another program has written to the file since it was opened: by its size and time.
  bool has_changed() const;

 private:
  bool fill();

  std::filesystem::path path_;
  size_t max_bytes_;
  struct stat opened_ {};  // as the file was when it was opened
  int file_;
  std::vector<char> block_;
  size_t begin_ = 0;  // of what is left of the block
  size_t end_ = 0;
  std::string text_;
  int64_t number_ = 0;
  int64_t offset_ = 0;
  uint32_t checksum_ = 0;
};

}  // namespace sparsellm
