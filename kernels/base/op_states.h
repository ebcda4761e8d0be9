#pragma once

#include <map>
#include <memory>
#include <typeindex>
#include <typeinfo>
#include <utility>

namespace sparsellm {

// What ops keep from call to call, one object of each type. The op alone knows the type: T is made
// by its default constructor at the first use and destroyed with this object.
class OpStates {
 public:
  template <class T>
  T& of() {
    const std::type_index type(typeid(T));
    auto found = states_.find(type);
    if (found == states_.end()) {
      Owned state(new T(), [](void* object) { delete static_cast<T*>(object); });
      found = states_.emplace(type, std::move(state)).first;
    }
    return *static_cast<T*>(found->second.get());
  }

 private:
  using Owned = std::unique_ptr<void, void (*)(void*)>;
  std::map<std::type_index, Owned> states_;
};

}  // namespace sparsellm
