#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparsellm {

// What kind of problem a matrix comes from, which says where its nonzeros are
// (sparse/matrices/random_matrix.h).
enum class MatrixClass : uint8_t {
  banded,      // near the diagonal
  stencil,     // neighbours in a grid
  power_law,   // few rows and columns have most of them, as in graphs of people and pages
  blocks,      // in dense blocks
  uniform,     // anywhere
  skewed,      // anywhere in rows whose lengths differ by factors
  arrow,       // in the first rows, the first columns and on the diagonal
  empty_rows,  // anywhere in few of the rows
};
inline constexpr std::array kMatrixClasses{
    MatrixClass::banded,  MatrixClass::stencil, MatrixClass::power_law, MatrixClass::blocks,
    MatrixClass::uniform, MatrixClass::skewed,  MatrixClass::arrow,     MatrixClass::empty_rows};

// "power-law"
std::string_view name_of(MatrixClass matrix_class);

// Throws Error that lists the names for one that is not among them.
MatrixClass parse_matrix_class(std::string_view text);

// "banded, stencil, power-law, ...", for messages.
std::string matrix_class_names();

}  // namespace sparsellm
