#include "sparse/matrices/matrix_market.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "tests/sparse/matrices/write_matrix_market.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr uint64_t kSeed = 3103;
constexpr const char* kReal = "%%MatrixMarket matrix coordinate real general\n";
constexpr const char* kPattern = "%%MatrixMarket matrix coordinate pattern general\n";
constexpr const char* kInteger = "%%MatrixMarket matrix coordinate integer general\n";
constexpr const char* kSymmetric = "%%MatrixMarket matrix coordinate real symmetric\n";
constexpr const char* kSkew = "%%MatrixMarket matrix coordinate real skew-symmetric\n";

CompressedRows read(std::string_view text) {
  const TempDir folder;
  return read_matrix_market(folder.write("m.mtx", text));
}

// Row after row, with the zeros.
std::vector<double> elements(std::string_view text) {
  ThreadPool threads(1);
  const CompressedRows m = read(text);
  validate(m, threads);
  EXPECT_EQ(m.dtype(), DType::f32);
  for (const float value : m.values<float>()) {
    EXPECT_NE(value, 0.0f);
  }
  return values_of(dense_matrix(m, threads).view);
}

using Elements = std::vector<double>;

TEST(MatrixMarket, Fields) {
  EXPECT_EQ(elements(std::string(kReal) + "2 3 3\n1 2 0.5\n2 1 -1e-3\n2 3 +.25E2\n"),
            (Elements{0, 0.5, 0, -1e-3f, 0, 25}));
  EXPECT_EQ(elements(std::string(kInteger) + "1 3 3\n1 1 -7\n1 2 +12\n1 3 16777217\n"),
            (Elements{-7, 12, 16777216}));
  EXPECT_EQ(elements(std::string(kPattern) + "2 2 2\n2 2\n1 1\n"), (Elements{1, 0, 0, 1}));
}

TEST(MatrixMarket, Symmetries) {
  EXPECT_EQ(elements(std::string(kSymmetric) + "3 3 3\n1 1 5\n3 1 2\n3 2 -4\n"),
            (Elements{5, 0, 2, 0, 0, -4, 2, -4, 0}));
  EXPECT_EQ(elements(std::string(kSkew) + "3 3 2\n2 1 5\n3 2 -4\n"),
            (Elements{0, -5, 0, 5, 0, 4, 0, -4, 0}));
  EXPECT_EQ(elements("%%MatrixMarket matrix coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n"),
            (Elements{1, 1, 1, 0}));
  EXPECT_EQ(elements("%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 3"),
            (Elements{0, -3, 3, 0}));
}

TEST(MatrixMarket, WordsLinesAndComments) {
  const Elements expected{0, 2};
  for (const char* text : {
           "%%MatrixMarket matrix coordinate real general\n1 2 1\n1 2 2",
           "%%matrixmarket MATRIX Coordinate Real GENERAL\n1 2 1\n1 2 2\n",
           "%%MatrixMarket\tmatrix  coordinate real general  \n1 2 1\n1 2 2\n",
           "%%MatrixMarket matrix coordinate real general\r\n%\r\n1 2 1\r\n1 2 2\r\n\r\n",
           "%%MatrixMarket matrix coordinate real general\n% a comment\n%\n\n  \n 1\t2  1 \n"
           "\n % more\n  1  2\t2.0  \n\n%end",
       }) {
    EXPECT_EQ(elements(text), expected) << text;
  }
  EXPECT_EQ(elements(kReal + ("%" + std::string(1023, 'x')) + "\n1 2 1\n1 2 2\n"), expected);
  EXPECT_EQ(elements(kReal + ("%" + std::string(1023, 'x')) + "\r\n1 2 1\n1 2 2\n"), expected);
}

TEST(MatrixMarket, EntriesOfOnePlaceAreSummedInDouble) {
  EXPECT_EQ(elements(std::string(kReal) + "1 2 5\n1 2 1e8\n1 1 1\n1 2 1\n1 2 -1e8\n1 1 2\n"),
            (Elements{3, 1}));
  EXPECT_EQ(elements(std::string(kPattern) + "1 1 3\n1 1\n1 1\n1 1\n"), (Elements{3}));
  // In the order of the file: 2^60 takes the 1 with it in one of these.
  EXPECT_EQ(elements(std::string(kReal) +
                     "1 2 6\n1 2 1\n1 2 1152921504606846976\n1 2 -1152921504606846976\n"
                     "1 1 1152921504606846976\n1 1 -1152921504606846976\n1 1 1\n"),
            (Elements{1, 0}));
  EXPECT_EQ(elements(std::string(kSkew) + "2 2 2\n2 1 3\n2 1 4\n"), (Elements{0, -7, 7, 0}));
  EXPECT_EQ(elements(std::string(kSymmetric) + "2 2 3\n2 1 3\n2 2 1\n2 1 4\n"),
            (Elements{0, 7, 7, 1}));
}

TEST(MatrixMarket, ZerosAreLeftOut) {
  for (const char* entries :
       {"2 2 0\n", "2 2 2\n1 1 0\n2 1 -0.0\n", "2 2 2\n1 2 5\n1 2 -5\n", "2 2 1\n2 2 1e-60\n"}) {
    const CompressedRows m = read(std::string(kReal) + entries);
    EXPECT_EQ(m.nonzeros(), 0) << entries;
    EXPECT_EQ(m.rows(), 2);
    EXPECT_TRUE(std::ranges::equal(m.starts(), std::vector{0, 0, 0}));
  }
  EXPECT_EQ(elements(std::string(kReal) + "1 4 4\n1 3 1\n1 1 0\n1 2 4\n1 4 0\n"),
            (Elements{0, 4, 1, 0}));
  EXPECT_EQ(read(std::string(kReal) + "0 0 0\n").rows(), 0);
  EXPECT_EQ(read(std::string(kReal) + "0 7 0\n").columns(), 7);
}

TEST(MatrixMarket, ValuesAtTheEndOfTheRange) {
  EXPECT_EQ(elements(std::string(kReal) + "1 4 4\n1 1 3.4028235e38\n1 2 -3.40282356e38\n"
                                          "1 3 1.4012985e-45\n1 4 1e-45\n"),
            (Elements{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
                      std::numeric_limits<float>::denorm_min(),
                      std::numeric_limits<float>::denorm_min()}));
}

TEST(MatrixMarket, RandomOnes) {
  ThreadPool threads(1);
  Random random(kSeed);
  for (const char* banner : {kReal, kSymmetric, kSkew}) {
    for (const auto& [rows, columns, entries] :
         {std::array{1, 1, 3}, {1, 40, 60}, {60, 1, 70}, {37, 37, 900}, {300, 200, 500}}) {
      SCOPED_TRACE(fmt::format("{}{} {} {}, seed {}", banner, rows, columns, entries, kSeed));
      const bool square = banner != kReal;
      if (square && (rows != columns || rows == 1)) {
        continue;
      }
      std::string text = fmt::format("{}{} {} {}\n", banner, rows, columns, entries);
      std::map<std::pair<int64_t, int64_t>, double> sums;  // whole numbers: exact in any order
      for (int i = 0; i < entries; ++i) {
        int64_t row = random.below(rows);
        int64_t column = random.below(columns);
        if (square) {
          std::tie(column, row) = std::minmax(row, column);
          row += row == column ? 1 : 0;
          if (row == rows) {
            --row;
            --column;
          }
        }
        const int64_t value = random.below(7) - 3;
        fmt::format_to(std::back_inserter(text), "{} {} {}\n", row + 1, column + 1, value);
        sums[{row, column}] += static_cast<double>(value);
        if (square) {
          sums[{column, row}] += static_cast<double>(banner == kSkew ? -value : value);
        }
      }
      Elements expected(static_cast<size_t>(rows * columns));
      for (const auto& [place, value] : sums) {
        expected[static_cast<size_t>(place.first * columns + place.second)] = value;
      }
      EXPECT_EQ(elements(text), expected);
      const std::string written = matrix_market_text(read(text));
      EXPECT_EQ(matrix_market_text(read(written)), written);
    }
  }
}

// The message begins with the file and, but for number 0, this line.
TEST(MatrixMarket, WrongFilesAreRefused) {
  struct Case {
    std::string text;
    int line;
    const char* what;
  };
  const std::string real = kReal;
  const std::string pattern = kPattern;
  const std::string integer = kInteger;
  const std::string symmetric = kSymmetric;
  const std::string long_line(1025, ' ');
  const std::vector<Case> wrong{
      {"", 0, R"(begins with %%MatrixMarket, not with "")"},
      {"%%Matrix", 0, R"(not with "%%Matrix")"},
      {"\x7f"
       "ELF\x02\x01",
       0, R"(not with "\u007fELF\u0002\u0001")"},
      {std::string(5000, '\0'), 0, R"(not with "\u0000)"},
      {"1 1 1\n1 1 1\n", 0, "%%MatrixMarket"},
      {"%%MatrixMarket", 1, R"(the object "" is not read; expected matrix)"},
      {"%%MatrixMarkets matrix", 1, "the banner"},
      {"%%MatrixMarket vector coordinate real general\n", 1, R"(the object "vector")"},
      {"%%MatrixMarket matrix array real general\n", 1,
       R"(the format "array" is not read; expected coordinate)"},
      {"%%MatrixMarket matrix coordinate complex general\n", 1,
       R"(the field "complex" is not read; expected real, integer, pattern)"},
      {"%%MatrixMarket matrix coordinate real hermitian\n", 1,
       R"("hermitian" is not read; expected general, symmetric, skew-symmetric)"},
      {"%%MatrixMarket matrix coordinate real\n", 1, R"(the symmetry "")"},
      {"%%MatrixMarket matrix coordinate real general more\n", 1,
       R"(there is "more" after the banner)"},
      {"%%MatrixMarket matrix coordinate pattern skew-symmetric\n", 1, "cannot be skew-symmetric"},
      {real, 1, "the file ends before its sizes"},
      {real + "% only\n\n", 3, "the file ends before its sizes"},
      {real + "2 2\n", 2, R"(the number of entries "" is not a whole number)"},
      {real + "2 2 1 1\n1 1 1\n", 2, R"(there is "1" after the sizes)"},
      {real + "2x 2 1\n1 1 1\n", 2, R"(the number of rows "2x")"},
      {real + "-2 2 1\n1 1 1\n", 2, R"(the number of rows "-2")"},
      {real + "2 2.0 1\n1 1 1\n", 2, R"(the number of columns "2.0")"},
      {real + "%\n2147483648 2 1\n1 1 1\n", 3, "is not a whole number from 0 to 2147483647"},
      {real + "2 2147483648 1\n1 1 1\n", 2, "columns \"2147483648\""},
      {real + "2 2 1000000000000000000\n1 1 1\n", 2, "the number of entries \"1000000000000000000"},
      {real + "2 2 99999999999999999999999\n1 1 1\n", 2, "the number of entries \"9999999"},
      {real + "2 2 999999999999999999\n1 1 1\n", 2,
       "999999999999999999 entries do not fit the 6 bytes that follow"},
      {real + "2 2 2\n1 1 1\n", 2, "2 entries do not fit the 6 bytes"},
      {pattern + "2 2 3\n1 1\n1 2", 2, "3 entries do not fit the 7 bytes"},
      {real + "2147483647 2 1\n1 1 1\n", 2, "2147483647 rows are too many for a file of"},
      {real + "2 2 1\n1 1 1 1\n", 3, R"(there is "1" after the entry)"},
      {real + "2 2 1\n1 1  \n 2  ", 3, R"(the value "" is not a number)"},
      {real + "2 2 1\n1         \n", 3, R"(the column "" is not a whole number from 1 to 2)"},
      {real + "2 2 1\n0 1 1\n", 3, R"(the row "0" is not a whole number from 1 to 2)"},
      {real + "2 2 1\n3 1 1\n", 3, R"(the row "3")"},
      {real + "2 2 1\n1 0 1\n", 3, R"(the column "0")"},
      {real + "2 2 1\n1 3 1\n", 3, R"(the column "3")"},
      {real + "2 2 1\n1 4294967297 1\n", 3, R"(the column "4294967297")"},
      {real + "2 2 1\n1 18446744073709551617 1\n", 3, R"(the column "18446744073709551617")"},
      {real + "2 2 1\n1 1.0 1\n", 3, R"(the column "1.0")"},
      {real + "2 2 1\n+1 1 1\n", 3, R"(the row "+1")"},
      {real + "0 2 1\n1 1 1\n", 3, R"(the row "1")"},
      {real + "2 2 1\n1 1 one\n", 3, R"(the value "one" is not a number)"},
      {real + "2 2 1\n1 1 1x\n", 3, R"(the value "1x" is not a number)"},
      {real + "2 2 1\n1 1 +-1\n", 3, R"(the value "+-1" is not a number)"},
      {real + "2 2 1\n1 1 ++1\n", 3, R"(the value "++1" is not a number)"},
      {real + "2 2 1\n1 1 +\n", 3, R"(the value "+" is not a number)"},
      {real + "2 2 1\n1 1 0x10\n", 3, R"(the value "0x10" is not a number)"},
      {real + "2 2 1\n1 1 1,5\n", 3, R"(the value "1,5" is not a number)"},
      {real + "2 2 1\n1 1 nan\n", 3, R"(the value "nan" is not a number that f32 holds)"},
      {real + "2 2 1\n1 1 -inf\n", 3, R"(the value "-inf" is not a number that f32 holds)"},
      {real + "2 2 1\n1 1 Infinity\n", 3, R"("Infinity" is not a number that f32 holds)"},
      {real + "2 2 1\n1 1 3.4028236e38\n", 3, "is not a number that f32 holds"},
      {real + "2 2 1\n1 1 -1e39\n", 3, R"(the value "-1e39" is not a number that f32 holds)"},
      {real + "2 2 1\n1 1 1e999\n", 3, R"(the value "1e999" is out of range)"},
      {real + "2 2 1\n1 1 1e-999\n", 3, R"(the value "1e-999" is out of range)"},
      {real + "2 2 2\n1 1 3e38\n1 1 3e38\n", 0,
       "the entries of row 1, column 1 have the sum 6e+38"},
      {real + "2 2 2\n1 1 1.00000\n%", 4, "the file ends after 1 of 2 entries"},
      {real + "2 2 1\n1 1 1\n\n2 2 2\n", 5, "there are more than 1 entries"},
      {real + "2 2 0\nend\n", 3, "there are more than 0 entries"},
      {real + long_line + "\n1 1 1\n1 1 1\n", 2, "longer than 1024 bytes"},
      {real + long_line + "\r\n1 1 1\n1 1 1\n", 2, "longer than 1024 bytes"},
      {real + "1 1 1\n1 1 " + std::string(5000, '1'), 3, "longer than 1024 bytes"},
      {real + std::string(1 << 20, 'x'), 2, "longer than 1024 bytes"},
      {real + "1 1 1\n1 1 1" + long_line, 3, "longer than 1024 bytes"},
      {real + "2 2 1\n1 1 1\r1 1 1\n", 3, "the value"},
      {integer + "2 2 1\n1 1 1.5\n", 3, R"(the value "1.5" is not a whole number)"},
      {integer + "2 2 1\n1 1 9223372036854775808\n", 3, "is out of range"},
      {pattern + "2 2 1\n1 1 1\n", 3, R"(there is "1" after the entry)"},
      {symmetric + "2 3 1\n1 1 1\n", 2, "a symmetric matrix 2 x 3 is not square"},
      {symmetric + "2 2 1\n1 2 1\n", 3, "row 1, column 2 is above the diagonal of a symmetric"},
      {std::string(kSkew) + "2 2 1\n1 2 1\n", 3, "above the diagonal of a skew-symmetric"},
      {std::string(kSkew) + "2 2 1\n2 2 1\n", 3, "row 2 has an entry on the diagonal"},
      {std::string(kSkew) + "2 3 1\n2 1 1\n", 2, "a skew-symmetric matrix 2 x 3 is not square"},
  };
  const TempDir folder;
  for (const auto& [text, line, what] : wrong) {
    const auto path = folder.write("m.mtx", text);
    const auto error = [&, &text = text] {
      try {
        read_matrix_market(path);
      } catch (const Error& refused) {
        return std::string(refused.what());
      }
      return "no Error for " + text;
    }();
    const std::string place =
        path.string() + (line == 0 ? std::string(": ") : fmt::format(", line {}: ", line));
    EXPECT_TRUE(error.starts_with(place)) << error << "\nexpected line " << line << ": " << what;
    EXPECT_NE(error.find(what), std::string::npos) << error << "\nexpected " << what;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_TRUE(throws_error([&] { read_matrix_market(folder.path() / "none.mtx"); }, "none.mtx"));
  EXPECT_TRUE(throws_error([&] { read_matrix_market(folder.path()); }, "not a regular file"));
}

// Every beginning of a file is refused, but those that lack no more than digits of the last value.
TEST(MatrixMarket, TruncatedFilesAreRefused) {
  const std::string text = std::string(kSymmetric) + "% comment\n12 12 3\n12 3 1\n7 7 -2.5\n11 2 4";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(read(text.substr(0, size)), Error) << size;
  }
  EXPECT_EQ(read(text).nonzeros(), 5);
}

}  // namespace
}  // namespace sparsellm
