// An op's arguments as one struct, filled once from the boxed call and read by name from then on: for ops of many
// arguments. TORCH_BOX would spell all of them out in each declaration and definition.
#pragma once

#include <optional>
#include <string>

#include "gossamer/torch/tensor.h"

namespace gossamer {

// Base of such a struct. Its members take their values off the stack, in the order of the schema, which is the order
// in which they are declared: `Tensor q = tensor();`.
class BoxedArguments {
 public:
  BoxedArguments(StableIValue* stack, uint64_t count) : next_(stack), end_(stack + count) {}

  void check_all_taken() const { STD_TORCH_CHECK(next_ == end_, "the schema has ", end_ - next_, " more arguments"); }

 protected:
  Tensor tensor() { return take<Tensor>(); }
  std::optional<Tensor> maybe_tensor() { return take<std::optional<Tensor>>(); }
  int64_t integer() { return take<int64_t>(); }
  std::optional<int64_t> maybe_integer() { return take<std::optional<int64_t>>(); }
  double number() { return take<double>(); }
  bool flag() { return take<bool>(); }
  std::string text() { return take<std::string>(); }
  ScalarType scalar_type() { return take<ScalarType>(); }

 private:
  template <class T>
  T take() {
    STD_TORCH_CHECK(next_ != end_, "the schema has too few arguments");
    return torch::stable::detail::to<T>(*next_++);
  }

  StableIValue *next_, *end_;
};

template <auto Function>
struct Boxed;
template <class Result, class Arguments, Result (*Function)(const Arguments&)>
struct Boxed<Function> {
  static void call(StableIValue* stack, uint64_t inputs, uint64_t) {
    const Arguments arguments(stack, inputs);
    arguments.check_all_taken();
    if constexpr (std::is_void_v<Result>) {
      Function(arguments);
    } else if constexpr (std::is_same_v<Result, Tensor>) {
      stack[0] = torch::stable::detail::from(Function(arguments));
    } else {
      torch::stable::detail::box_from_tuple(stack, Function(arguments));
    }
  }
};

// What m.impl takes for a function of such a struct.
template <auto Function>
constexpr auto boxed = &Boxed<Function>::call;

}  // namespace gossamer
