#pragma once

#include <string>

#include "gossamer/activation.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

// The names of gossamer/ops/activations.py.
inline Activation parse_activation(const char* op, const std::string& name) {
  constexpr struct {
    const char* name;
    Activation activation;
  } known[] = {{"gelu", Activation::gelu},  {"gelu_tanh", Activation::gelu_tanh}, {"silu", Activation::silu},
               {"swish", Activation::silu}, {"mish", Activation::mish},           {"relu2", Activation::relu2},
               {"relu", Activation::relu}};
  for (const auto& k : known) {
    if (name == k.name) return k.activation;
  }
  STD_TORCH_CHECK(false, op, ": unknown activation ", name.c_str());
  return Activation::gelu;
}

}  // namespace gossamer
