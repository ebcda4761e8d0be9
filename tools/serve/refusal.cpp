#include "tools/serve/refusal.h"

#include <new>

#include "kernels/base/error.h"
#include "tools/cli/interrupt.h"
#include "tools/serve/completion_request.h"

namespace sparsellm {

std::optional<Refusal> refusal_of(const std::function<void()>& body) noexcept {
  constexpr char kNoMemory[] = "out of memory";  // short enough to need none
  try {
    try {
      body();
      return {};
    } catch (const UnknownModel& error) {
      return Refusal{.status = 404, .why = error.what()};
    } catch (const Error& error) {
      return Refusal{.status = 400, .why = error.what()};
    } catch (const Interrupted&) {
      return Refusal{.status = 503, .why = "the server is shutting down"};
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return Refusal{.status = 500, .why = error.what()};
    }
  } catch (const std::bad_alloc&) {
    return Refusal{.status = 503, .why = kNoMemory};
  } catch (...) {
    return Refusal{.status = 500, .why = "unknown error"};
  }
}

}  // namespace sparsellm
