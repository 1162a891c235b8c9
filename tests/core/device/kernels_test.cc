// The loops of each instruction set this processor has, one by one.
#include "core/device/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/oracle/model.h"
#include "tests/oracle/numbers.h"
#include "tests/support/device_choice.h"

namespace pleiad {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<Bf16> ToBf16(const std::vector<double>& values) {
  std::vector<Bf16> bits;
  for (double value : values) bits.push_back(oracle::Bf16Bits(oracle::RoundToBf16(value)));
  return bits;
}

class KernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (testing::ChosenTestDevice() != testing::TestDevice::kCpu) GTEST_SKIP() << "concerns the CPU device alone";
    if (GetParam() > DetectIsa()) GTEST_SKIP() << "this processor has no " << Name(GetParam());
  }
  const CpuKernels& kernels_ = KernelsFor(GetParam());
};

TEST_P(KernelsTest, ExpIsWithinTwoUlp) {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, -1.0f, 88.7f, -87.3f, 1e-30f};
  for (float value = -87.3f; value < 88.7f; value += 0.0137f) x.push_back(value);
  std::vector<float> y(x.size());
  kernels_.exp(x.data(), x.size(), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i], exact, exact * 0x1p-23 * 2) << x[i];
  }
}

TEST_P(KernelsTest, ExpOfSpecialValues) {
  const std::vector<float> x = {kInf, -kInf, std::nanf(""), 88.8f, 1e30f, -88.0f, -1e30f};
  std::vector<float> y(x.size());
  kernels_.exp(x.data(), x.size(), y.data());
  EXPECT_EQ(y[0], kInf);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], kInf);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], 0.0f);
  EXPECT_EQ(y[6], 0.0f);
}

TEST_P(KernelsTest, RoundIsTheNearestBf16) {
  std::vector<float> x = {kInf, -kInf, 0.0f, -0.0f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f, -1.5e-45f};
  for (double value : oracle::RandomValues(1001, 100, 1)) x.push_back(static_cast<float>(value));
  std::vector<Bf16> y(x.size());
  kernels_.round(x.data(), x.size(), y.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], oracle::Bf16Bits(oracle::RoundToBf16(x[i]))) << x[i];
  const float nan = std::bit_cast<float>(0x7F800001u);  // its upper half alone would be infinity
  kernels_.round(&nan, 1, y.data());
  EXPECT_TRUE(std::isnan(oracle::Bf16Value(y[0])));
}

TEST_P(KernelsTest, WidenIsExact) {
  std::vector<Bf16> x(0x10000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<Bf16>(i);
  std::vector<float> y(x.size());
  kernels_.widen(x.data(), x.size() - 3, y.data());
  for (size_t i = 0; i < x.size() - 3; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), i << 16);
  EXPECT_EQ(y[x.size() - 1], 0.0f);
}

// Bit for bit, NaN payloads too; at every place in a vector, whole ones and the last part of one.
TEST_P(KernelsTest, ConversionsEqualTheScalarForm) {
  std::vector<uint32_t> bits;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) bits.push_back(high << 16 | low);
  }
  std::mt19937 random(11);
  for (int i = 0; i < 200'003; ++i) bits.push_back(random());
  std::vector<float> x(bits.size());
  std::memcpy(x.data(), bits.data(), bits.size() * sizeof(float));
  std::vector<Bf16> y(x.size());
  std::vector<float> wide(x.size());
  for (const size_t from : {size_t{0}, size_t{1}, size_t{7}, x.size() - 19}) {
    kernels_.round(x.data() + from, x.size() - from, y.data());
    kernels_.widen(y.data(), x.size() - from, wide.data());
    for (size_t i = 0; i + from < x.size(); ++i) {
      ASSERT_EQ(y[i], FloatToBf16(x[i + from])) << std::hex << bits[i + from];
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(Bf16ToFloat(y[i]))) << std::hex << y[i];
    }
  }
}

TEST_P(KernelsTest, DotDoesNotDependOnTheTileAndIsRoundedOnce) {
  for (size_t embed : {1, 7, 32, 40, 333}) {
    constexpr size_t kRows = 11;
    constexpr size_t kTokens = 9;
    const std::vector<double> w = oracle::RandomValues(kRows * embed, 1, 2);
    const std::vector<double> x = oracle::RandomValues(kTokens * embed, 1, 3);
    const std::vector<Bf16> weights = ToBf16(w);
    const std::vector<Bf16> e = ToBf16(x);
    const size_t padded = DotPadding(embed);
    std::vector<float> wide(kTokens * padded, std::nanf(""));
    for (size_t t = 0; t < kTokens; ++t) kernels_.widen_for_dot(&e[t * embed], embed, &wide[t * padded]);
    std::vector<Bf16> whole(kTokens * kRows);
    kernels_.dot({weights.data(), embed, wide.data(), padded, kTokens, whole.data(), kRows}, 0, kRows);
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t r = 0; r < kRows; ++r) {
        Bf16 alone = 0;
        kernels_.dot({&weights[r * embed], embed, &wide[t * padded], padded, 1, &alone, 1}, 0, 1);
        EXPECT_EQ(whole[t * kRows + r], alone) << "E " << embed << " token " << t << " row " << r;
        double exact = 0;
        double size = 0;
        for (size_t i = 0; i < embed; ++i) {
          const double product = oracle::Bf16Value(weights[r * embed + i]) * oracle::Bf16Value(e[t * embed + i]);
          exact += product;
          size += std::fabs(product);
        }
        EXPECT_NEAR(oracle::Bf16Value(alone), exact, std::fabs(exact) * 0x1p-8 + size * 1e-6);
      }
    }
  }
}

// F6: the gate at chosen scaled dots. Keys and queries of ones have norm one, so s = norm_key * sqrt(H).
float GateAt(const CpuKernels& kernels, float s, float sign = 1) {
  constexpr size_t kHidden = 16;
  const std::vector<Bf16> key(kHidden, FloatToBf16(1));
  const std::vector<float> query(kHidden, sign);
  const std::vector<float> norm_key(kHidden, s / 4);
  const std::vector<float> norm_query(kHidden, 1);
  GateArgs args;
  args.key = args.value = key.data();
  args.highway.data = reinterpret_cast<const std::byte*>(query.data());
  args.norm_key = norm_key.data();
  args.norm_query = norm_query.data();
  args.hidden = kHidden;
  return kernels.gate(args).g;
}

TEST_P(KernelsTest, GateOfChosenDots) {
  EXPECT_EQ(GateAt(kernels_, 0), 0.5f);
  EXPECT_NEAR(GateAt(kernels_, 4, -1), 0.119203f, 1e-6);
  EXPECT_NEAR(GateAt(kernels_, 4), 1 - 0.119203f, 1e-6);
  EXPECT_NEAR(GateAt(kernels_, 1e-8f), 0.50025f, 1e-6);
  EXPECT_NEAR(GateAt(kernels_, 1e-8f, -1), 0.49975f, 1e-6);
  EXPECT_TRUE(std::isnan(GateAt(kernels_, std::nanf(""))));
  EXPECT_EQ(GateAt(kernels_, kInf), 1.0f);
}

// F5: one channel, taps 1, 10, 100, 1000, dilation 3, an impulse. u is nothing beside silu, x is the impulse.
TEST_P(KernelsTest, ConvOfAnImpulse) {
  const float weights[] = {1, 10, 100, 1000};
  const float one = 1;
  const Bf16 value = FloatToBf16(1);
  const Bf16 zero = 0;
  const float x[] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const auto silu = [](double c) { return static_cast<float>(c / (1 + std::exp(-c))); };
  for (int t = 0; t < 10; ++t) {
    std::vector<ConvTap> taps;
    for (int j = 0; j < 3; ++j) {
      const int from = t - (3 - j) * 3;
      if (from >= 0) taps.push_back({.weights = &weights[j], .x = &x[from]});
    }
    taps.push_back({.weights = &weights[3], .value = t == 0 ? &value : &zero, .gate = {1e-20f, 1e20f}});
    float out = -1;
    float ring = -1;
    ConvArgs args;
    args.taps = taps.data();
    args.num_taps = taps.size();
    args.norm_conv = &one;
    args.ring_row = &ring;
    args.output = reinterpret_cast<std::byte*>(&out);
    args.hidden = 1;
    kernels_.conv(args);
    const float expected = t == 0 ? silu(1000) : t == 3 ? silu(100) : t == 6 ? silu(10) : t == 9 ? silu(1) : 0;
    EXPECT_NEAR(out, expected, expected * 1e-6) << t;
    EXPECT_EQ(ring, x[t]) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, KernelsTest, ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& param) { return Name(param.param); });

}  // namespace
}  // namespace pleiad
