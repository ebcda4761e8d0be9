#include "kernels/take_chosen.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/take_chosen_device.h"

namespace sparsellm {

void take_chosen(const Tensor& chosen, Tensor ids, ExecContext& ctx) {
  check_tensor({"take_chosen", "chosen"}, chosen, Elements::i32, {kAnySize}, ctx);
  check_tensor({"take_chosen", "ids"}, ids, Elements::i32, {kAnySize}, ctx);
  if (ctx.device.is_cuda()) {
    take_chosen_cuda(chosen, ids, ctx);
  } else {
    take_chosen_cpu(chosen, ids);
  }
}

void take_chosen_cpu(const Tensor& chosen, Tensor ids) {
  for (int64_t i = 0; i < ids.size(0); ++i) {
    int32_t& id = ids.data<int32_t>()[i];
    if (id < 0) {
      const int64_t place = -1 - int64_t{id};
      require(place < chosen.size(0), "take_chosen: place {} of {} tokens", place, chosen.size(0));
      id = std::max(chosen.data<int32_t>()[place], 0);
    }
  }
}

}  // namespace sparsellm
