#include "tools/serve/refusal.h"

#include <new>

#include "kernels/base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/serve/completion_request.h"

namespace sparsellm {

Refusal current_refusal() noexcept {
  constexpr char kNoMemory[] = "out of memory";  // short enough to need none
  try {
    try {
      throw;
    } catch (const UnknownModel& error) {
      return {.status = 404, .why = error.what()};
    } catch (const Error& error) {
      return {.status = 400, .why = error.what()};
    } catch (const Interrupted&) {
      return {.status = 503, .why = "the server is shutting down"};
    } catch (const std::bad_alloc&) {
      return {.status = 503, .why = kNoMemory};
    } catch (const std::exception& error) {
      return {.status = 500, .why = error.what()};
    } catch (...) {
      return {.status = 500, .why = "unknown error"};
    }
  } catch (...) {  // no memory for the text
    return {.status = 503, .why = kNoMemory};
  }
}

}  // namespace sparsellm
