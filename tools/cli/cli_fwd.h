#pragma once

// What headers need of CLI11, which takes longer to compile than most sources.
namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI
