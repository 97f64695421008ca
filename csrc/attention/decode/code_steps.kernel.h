// Scores and sums over blocks of dense codes. Scales never meet codes: those of rows multiply scores and weights, those of
// channels queries and sums. What all codes of a channel or group have in common (a minimum, half a step) is added once.
// Include from *.kernel.cpp files alone.
#pragma once

#include "attention/decode/codes.kernel.h"
#include "attention/decode/decode_attention.kernel.h"

namespace gossamer {
namespace {

// Queries or values of a block for `rows` rows from `first` on.
struct CodeStep {
  const KvFormat& f;
  const CodePlanes& planes;
  CodeScratch& scratch;
  const uint8_t* block;
  int first, rows;

  __attribute__((always_inline)) FloatRows lanes_of(float* data) const {
    return {data + first * planes.lanes(), planes.lanes()};
  }
  __attribute__((always_inline)) CodeBuffers buffers() const {
    return {scratch.last_chunk, scratch.scales, scratch.minima, scratch.rows};
  }
};

GOSSAMER_INLINE float lane_sum(F32 x) {
#if GOSSAMER_LANES == 16
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(x));
#else
  return sum(x);
#endif
}

GOSSAMER_INLINE float dot(const float* a, const float* b, int n) {
  F32 total{};
  for (int i = 0; i < n; i += kLanes) total += load(a + i) * load(b + i);
  return lane_sum(total);
}

// to = to * shrink + x * y
GOSSAMER_INLINE void add_product(float* to, float shrink, const float* x, float y, int n) {
  for (int i = 0; i < n; i += kLanes) store(to + i, load(to + i) * shrink + load(x + i) * y);
}

GOSSAMER_INLINE void multiply_by(float* x, float y, int n) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i) * y);
}

// The queries of an item [rows][padded head_dim] in the order of lanes.
__attribute__((noinline)) static void set_code_queries(const KvFormat& f, const FloatRows& q, int rows,
                                                       CodeScratch& scratch) {
  const CodePlanes& planes = scratch.k_planes;
  for (int r = 0; r < rows; ++r) {
    float* lanes = scratch.q + r * planes.lanes();
    for (int i = 0; i < planes.lanes(); ++i) {
      lanes[i] = planes.channel[i] < 0 ? 0 : q[r][planes.channel[i]] * planes.factor[i];
    }
    scratch.q_rest[r] = dot(q[r], planes.rest, q.stride);
    for (int c = 0; c < f.head_dim; c += kGroup) {
      float total = 0;
      for (int k = c; k < c + kGroup && k < f.head_dim; ++k) total += q[r][k];
      scratch.q_groups[r * kMaxScaleGroups + c / kGroup] = total;
    }
  }
}

// Scales and minima of channels; scales also in the order of lanes.
GOSSAMER_INLINE void load_lane_scales(const CodeStep& step, ChannelScales& channels, float* lanes) {
  load_channel_scales(step.f, step.block, channels);
  const float center = static_cast<float>(1 << (step.f.bits - 1));
  for (int c = 0; c < step.f.head_dim; ++c) channels.minimum[c] += channels.scale[c] * center;
  for (int i = 0; i < step.planes.lanes(); ++i) {
    lanes[i] = step.planes.channel[i] < 0 ? 0 : channels.scale[step.planes.channel[i]];
  }
}

// Queries times the scales of the block's channels.
GOSSAMER_INLINE void scale_queries(const CodeStep& step, const FloatRows& q) {
  CodeScratch& scratch = step.scratch;
  ChannelScales channels;
  load_lane_scales(step, channels, scratch.lane_scales);
  const FloatRows from = step.lanes_of(scratch.q), to = step.lanes_of(scratch.block_rows);
  for (int r = 0; r < step.rows; ++r) {
    for (int i = 0; i < from.stride; i += kLanes) {
      store(to[r] + i, load(from[r] + i) * load(scratch.lane_scales + i));
    }
    scratch.q_rest[step.first + r] = dot(q[r], channels.minimum, q.stride);
  }
}

// From products of codes to scores, [rows][32 tokens].
GOSSAMER_INLINE void finish_scores(const CodeStep& step, float* scores) {
  const CodeScratch& scratch = step.scratch;
  const int groups = step.f.scales == Scales::group ? step.f.head_dim / kGroup : 0;
  for (int r = 0; r < step.rows; ++r) {
    const float* totals = scratch.q_groups + (step.first + r) * kMaxScaleGroups;
    const float rest = groups ? 0 : scratch.q_rest[step.first + r];
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      F32 x = load(scores + r * kBlockTokens + t) + rest;
      for (int g = 0; g < groups; ++g) x += load(scratch.minima + g * kBlockTokens + t) * totals[g];
      if (step.f.scales == Scales::row) x *= load(scratch.scales + t);
      store(scores + r * kBlockTokens + t, x);
    }
  }
}

// scores[row][32 tokens]; q: the step's rows in the order of channels.
__attribute__((noinline)) static void score_codes(const CodeStep& step, const FloatRows& q, float* terms, float* scores,
                                                  const Ahead& ahead) {
  CodeScratch& scratch = step.scratch;
  load_token_scales(step.f, step.block, step.buffers());
  const bool by_channel = step.f.scales == Scales::channel;
  if (by_channel) scale_queries(step, q);
  const FloatRows lanes = step.lanes_of(by_channel ? scratch.block_rows : scratch.q);
  with_codes(step.f, step.planes, step.block, step.rows, step.buffers(), [&](const auto& keys) {
    score_rows(keys, lanes.stride / kLanes, step.rows, lanes, terms, scores, ahead);
  });
  finish_scores(step, scores);
}

// Weights of a row, with its tokens' scales if they have any, and their sum; nothing beyond begin .. end-1.
GOSSAMER_INLINE float scale_weights(float* p, const float* scales, int begin, int end) {
  F32 total{};
  for (int i = 0; i < kBlockTokens; i += kLanes) {
    I32 token;
    for (int k = 0; k < kLanes; ++k) token[k] = i + k;
    const F32 x = scales ? load(p + i) * load(scales + i) : load(p + i);
    const F32 seen = select((token >= begin) & (token < end), x, F32{});
    store(p + i, seen);
    total += seen;
  }
  return lane_sum(total);
}

// What minima, or halves of steps, add to the sums of a row, which shrink at the same time.
GOSSAMER_INLINE void add_rest(const CodeStep& step, const float* rest, const float* p, const Weights& w, float total,
                              float shrink, const FloatRows& sums, int r) {
  if (step.f.scales != Scales::group) {
    if (rest != nullptr) return add_product(sums[r], shrink, rest, total, sums.stride);
    if (shrink != 1) multiply_by(sums[r], shrink, sums.stride);
    return;
  }
  for (int g = 0; g < step.f.head_dim / kGroup; ++g) {
    const float* minima = step.scratch.minima + g * kBlockTokens;
    float part = 0;
    if (w.begin == 0 && w.end == kBlockTokens) part = dot(p, minima, kBlockTokens);
    else for (int t = w.begin; t < w.end; ++t) part += p[t] * minima[t];
    float* to = sums[r] + g * kGroup;
    for (int i = 0; i < kGroup; i += kLanes) store(to + i, load(to + i) * shrink + part);
  }
}

// Values of a block with scales per channel: sums of codes, which are scaled when the block is done.
template <class Source>
GOSSAMER_INLINE void add_scaled(const CodeStep& step, const Source& values, const Weights& w, const FloatRows& sums) {
  const FloatRows block = step.lanes_of(step.scratch.block_rows);
  std::memset(block[0], 0, step.rows * block.stride * sizeof(float));
  value_rows(values, block.stride / kLanes, step.rows, w, block);
  for (int r = 0; r < step.rows; ++r) {
    for (int i = 0; i < block.stride; i += kLanes) {
      const F32 scaled = load(block[r] + i) * load(step.scratch.lane_scales + i);
      store(sums[r] + i, load(sums[r] + i) * w.shrink[r] + scaled);
    }
  }
}

// Adds weights times values to the sums in the order of lanes, and minima to `sums`, in that of channels.
__attribute__((noinline)) static void add_codes(const CodeStep& step, float* p, const Weights& w,
                                                const FloatRows& sums) {
  CodeScratch& scratch = step.scratch;
  const bool by_row = step.f.scales == Scales::row, by_channel = step.f.scales == Scales::channel;
  ChannelScales channels;
  load_token_scales(step.f, step.block, step.buffers());
  if (by_channel) load_lane_scales(step, channels, scratch.lane_scales);
  const float* rest = by_channel ? channels.minimum : step.f.values == Values::profile ? step.planes.rest : nullptr;
  for (int r = 0; r < step.rows; ++r) {
    float* row = p + r * kBlockTokens;
    const float total = scale_weights(row, by_row ? scratch.scales : nullptr, w.begin, w.end);
    add_rest(step, rest, row, w, total, w.shrink[r], sums, r);
  }
  const FloatRows lanes = step.lanes_of(scratch.sums);
  with_codes(step.f, step.planes, step.block, step.rows, step.buffers(), [&](const auto& values) {
    if (by_channel) return add_scaled(step, values, w, lanes);
    value_rows(values, lanes.stride / kLanes, step.rows, w, lanes);
  });
}

// Sums in the order of lanes into those in the order of channels.
__attribute__((noinline)) static void add_code_sums(const CodeScratch& scratch, int rows, const FloatRows& sums) {
  const CodePlanes& planes = scratch.v_planes;
  for (int r = 0; r < rows; ++r) {
    const float* lanes = scratch.sums + r * planes.lanes();
    for (int i = 0; i < planes.lanes(); ++i) {
      if (planes.channel[i] >= 0) sums[r][planes.channel[i]] += lanes[i] * planes.factor[i];
    }
  }
}

}  // namespace
}  // namespace gossamer
