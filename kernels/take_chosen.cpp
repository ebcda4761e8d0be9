#include "kernels/take_chosen.h"

#include "kernels/checks.h"
#include "kernels/take_chosen_device.h"

namespace sparsellm {

void take_chosen(const Tensor& chosen, Tensor ids, ExecContext& ctx) {
  require(ctx.device.is_cuda(), "take_chosen: on {} the engine knows the tokens",
          to_string(ctx.device));
  check_tensor({"take_chosen", "chosen"}, chosen, Elements::i32, {kAnySize}, ctx);
  check_tensor({"take_chosen", "ids"}, ids, Elements::i32, {kAnySize}, ctx);
  take_chosen_cuda(chosen, ids, ctx);
}

}  // namespace sparsellm
