// Models and batches that the CUDA device does not take are refused before a GPU is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/device/device.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const DeviceOptions& options) {
  const Geometry& geometry = options.geometry;
  const size_t channels = geometry.channels();
  LayerWeights weights;
  weights.key_value.resize((channels + geometry.hidden_size) * geometry.embed_dim);
  weights.norm_key.resize(channels);
  weights.norm_query.resize(channels);
  weights.norm_conv.resize(channels);
  weights.conv.resize(channels * geometry.conv_kernel_size);
  const auto device = CreateCudaDevice(options, {weights});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << device.status();
  return std::string(device.status().message());
}

DeviceOptions SmallOptions() {
  DeviceOptions options;
  options.geometry.hidden_size = 8;
  options.geometry.hc_count = 1;
  options.geometry.embed_dim = 16;
  options.carries = 1;
  options.max_tokens = 4;
  return options;
}

TEST(CudaLimits, WideStreamsAreRefused) {
  DeviceOptions options = SmallOptions();
  options.geometry.hidden_size = 8200;
  EXPECT_THAT(Refusal(options), HasSubstr("hidden_size = 8200: must be <= 8192"));
}

TEST(CudaLimits, LongConvsAreRefused) {
  DeviceOptions options = SmallOptions();
  options.geometry.conv_kernel_size = 9;
  EXPECT_THAT(Refusal(options), HasSubstr("conv_kernel_size = 9: must be <= 8"));
}

TEST(CudaLimits, BatchesOfMoreThan32BitsOfValuesAreRefused) {
  DeviceOptions options = SmallOptions();
  options.geometry.embed_dim = 512;
  options.max_tokens = 1 << 23;
  EXPECT_THAT(Refusal(options), HasSubstr("max_tokens = 8388608: must be <= 8388607 on CUDA"));
}

}  // namespace
}  // namespace pleiad
