#pragma once

#include <memory>
#include <type_traits>

namespace sparsellm {

template <auto kDestroy>
struct LibraryHandleDeleter {
  template <class Handle>
  void operator()(Handle* handle) const {
    kDestroy(handle);
  }
};

// Owns an opaque object of a C library.
template <class Handle, auto kDestroy>
using LibraryHandle =
    std::unique_ptr<std::remove_pointer_t<Handle>, LibraryHandleDeleter<kDestroy>>;

// Of what `create` puts at the address that it gets.
template <class Owner, class Create>
Owner make_handle(Create&& create) {
  typename Owner::pointer handle = nullptr;
  create(&handle);
  return Owner(handle);
}

}  // namespace sparsellm
