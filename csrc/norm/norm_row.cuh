// One row of a norm on a GPU, in packs: what is read, added, summed and written.
#pragma once

#include "gossamer/cuda/vector.cuh"

namespace gossamer {
namespace {

enum class NormForm { rms, residual_rms, residual_layer };

template <class T>
struct NormArgs {
  const T *x, *residual, *input_bias, *weight, *bias;  // input_bias and bias may be null
  T *normed, *sum;
  int64_t x_stride, residual_stride, rows;
  int packs;  // per row
  float inverse_width, eps;
};

// One row, in packs of V elements.
template <class T, int V, NormForm F>
struct NormRow {
  static constexpr bool add = F != NormForm::rms, layer = F == NormForm::residual_layer;
  using Pack = cuda::Pack<T, V>;
  struct Inputs {
    Pack x, residual, input_bias;
  };

  const NormArgs<T>& args;
  const T *x, *residual;
  T *sum, *normed;

  __device__ NormRow(const NormArgs<T>& a, int64_t row)
      : args(a),
        x(a.x + row * a.x_stride),
        residual(add ? a.residual + row * a.residual_stride : nullptr),
        sum(add ? a.sum + row * a.packs * V : nullptr),
        normed(a.normed + row * a.packs * V) {}

  __device__ Inputs load(int p) const {
    Inputs in;
    in.x = cuda::load<T, V>(x + p * V);
    if constexpr (add) in.residual = cuda::load<T, V>(residual + p * V);
    if constexpr (layer) {
      if (args.input_bias != nullptr) in.input_bias = cuda::load<T, V>(args.input_bias + p * V);
    }
    return in;
  }

  // What is normed: x itself, or the sum, rounded to T and stored.
  __device__ Pack take(const Inputs& in, int p) const {
    if constexpr (!add) {
      return in.x;
    } else {
      float h[V], other[V];
      cuda::unpack<T, V>(in.x, h);
      if constexpr (layer) {
        if (args.input_bias != nullptr) {
          cuda::unpack<T, V>(in.input_bias, other);
#pragma unroll
          for (int i = 0; i < V; ++i) h[i] += other[i];
        }
      }
      cuda::unpack<T, V>(in.residual, other);
#pragma unroll
      for (int i = 0; i < V; ++i) h[i] += other[i];
      const Pack rounded = cuda::pack<T, V>(h);
      cuda::store<T, V>(sum + p * V, rounded);
      return rounded;
    }
  }

  // The same once more, from memory.
  __device__ Pack taken(int p) const { return cuda::load<T, V>((add ? sum : x) + p * V); }

  // The sum of the elements, or of the squares of their distances from `mean`.
  static __device__ float moment(const Pack& pack, bool squares, float mean) {
    float h[V], total = 0;
    cuda::unpack<T, V>(pack, h);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float off = layer ? h[i] - mean : h[i];
      total += squares ? off * off : h[i];
    }
    return total;
  }

  __device__ void write(int p, const Pack& pack, const Pack& weight, const Pack& bias, float mean, float scale) const {
    float h[V], w[V], b[V];
    cuda::unpack<T, V>(pack, h);
    cuda::unpack<T, V>(weight, w);
    if (layer && args.bias != nullptr) cuda::unpack<T, V>(bias, b);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      h[i] = (layer ? h[i] - mean : h[i]) * scale * w[i];
      if (layer && args.bias != nullptr) h[i] += b[i];
    }
    cuda::store<T, V>(normed + p * V, cuda::pack<T, V>(h));
  }

  __device__ Pack weight(int p) const { return cuda::load<T, V>(args.weight + p * V); }
  __device__ Pack bias(int p) const {
    Pack b{};
    if (layer && args.bias != nullptr) b = cuda::load<T, V>(args.bias + p * V);
    return b;
  }
};

}  // namespace
}  // namespace gossamer
