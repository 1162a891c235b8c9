// Rows of carries: where they lie, and how a block copies one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/device/cuda/kernels.h"

namespace pleiad::cuda {

__device__ inline float* Row(const CarryMemory& carries, uint32_t carry, uint32_t row) {
  return carries.rows + (uint64_t{carry} * (carries.ring_rows + carries.state_len) + row) * carries.channels;
}

// `steps` back from the row at `cursor`, 1 the newest.
__device__ inline float* RingRowBack(const CarryMemory& carries, uint32_t carry, uint32_t cursor, uint32_t steps) {
  return Row(carries, carry, (cursor + carries.ring_rows - steps) % carries.ring_rows);
}

// Rows are multiples of 4 floats, or go float by float.
__device__ inline void CopyRow(const float* from, float* to, uint32_t width) {
  if (width % 4 == 0) {
    for (uint32_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
      reinterpret_cast<float4*>(to)[i] =
          from == nullptr ? float4{0, 0, 0, 0} : reinterpret_cast<const float4*>(from)[i];
    }
  } else {
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from == nullptr ? 0.0f : from[i];
  }
}

// Row `place` of all moves times state_len: undo to ring or ring to undo. All threads of the block.
__device__ inline void MoveUndoRow(const UndoMove* moves, uint32_t place, const CarryMemory& carries) {
  const UndoMove move = moves[place / carries.state_len];
  const uint32_t steps = place % carries.state_len + 1;
  if (steps > move.rows) return;
  float* ring = RingRowBack(carries, move.carry, move.cursor, steps);
  float* undo = Row(carries, move.carry, carries.ring_rows + carries.state_len - steps);
  if (move.to_ring != 0) {
    CopyRow(undo, ring, carries.channels);
  } else {
    CopyRow(ring, undo, carries.channels);
  }
}

// All moves, by the first `threads` of all blocks: each block has a piece of a row or more.
__device__ inline void MoveUndoRows(const UndoMove* moves, uint32_t count, const CarryMemory& carries,
                                    uint32_t threads) {
  const uint32_t places = count * carries.state_len;
  const uint32_t pieces = max(1u, gridDim.x / places);
  const uint32_t width = (carries.channels + pieces - 1) / pieces;
  for (uint32_t i = blockIdx.x; i < places * pieces; i += gridDim.x) {
    const uint32_t place = i / pieces;
    const UndoMove move = moves[place / carries.state_len];
    const uint32_t steps = place % carries.state_len + 1;
    if (steps > move.rows) continue;
    float* ring = RingRowBack(carries, move.carry, move.cursor, steps);
    float* undo = Row(carries, move.carry, carries.ring_rows + carries.state_len - steps);
    const float* from = move.to_ring != 0 ? undo : ring;
    float* to = move.to_ring != 0 ? ring : undo;
    const uint32_t first = i % pieces * width;
    const uint32_t end = min(first + width, carries.channels);
    for (uint32_t column = first + threadIdx.x; column < end; column += threads) to[column] = from[column];
  }
}

}  // namespace pleiad::cuda
