// Many batches enqueued with nobody waiting in between, and waits in any order from another thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/stage_rig.h"
#include "tests/support/test_device.h"

namespace pleiad {
namespace {

using CudaQueueTest = OnGpu<::testing::Test>;

// What was enqueued on the one rig, and what the other, which waits after each call, has for it.
struct Enqueued {
  Ticket ticket;
  RigBatch batch;
  std::unique_ptr<std::vector<float>> rows;  // of ReadCarry and WriteCarry
  std::vector<std::vector<float>> outputs;
  std::vector<float> expected_rows;  // of ReadCarry
};

TEST_F(CudaQueueTest, BatchesReadsAndWritesOfCarriesRunInTheOrderOfTheCalls) {
  constexpr uint32_t kTokens = 140, kCarries = 6;
  DeviceOptions options;
  options.batch_invariant = true;
  options.carries = kCarries;
  options.max_tokens = 130;
  const oracle::Model model = MakeModel({.hidden = 29, .hc = 3, .embed = 52}, 161);
  StageRig rig = RandomRig(model, kTokens, 162, options, DeviceUnderTest());
  StageRig peer = RandomRig(model, kTokens, 162, options, DeviceUnderTest());
  std::vector<RigCarry> carries, peers;
  for (uint32_t i = 0; i < kCarries; ++i) {
    carries.push_back(rig.NewCarry());
    peers.push_back(peer.NewCarry());
  }
  std::mt19937 random(163);
  const auto enqueue = [&](std::deque<Enqueued>& queue) {
    Enqueued& item = queue.emplace_back();
    const uint32_t c = random() % kCarries;
    const uint32_t choice = random() % 8;
    if (choice == 0) {
      item.rows = std::make_unique<std::vector<float>>(rig.state_len() * rig.channels(),
                                                       std::numeric_limits<float>::quiet_NaN());
      const auto ticket = rig.device().ReadCarry({carries[c].slot, carries[c].ring, item.rows->data()});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      item.ticket = *ticket;
      item.expected_rows = peer.ReadRows(peers[c]);
    } else if (choice == 1) {
      const std::vector<double> values = oracle::RandomValues(rig.state_len() * rig.channels(), 1.0, random());
      item.rows = std::make_unique<std::vector<float>>(values.begin(), values.end());
      const auto ticket = rig.device().WriteCarry({carries[c].slot, item.rows->data()});
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      item.ticket = *ticket;
      peer.WriteRows(&peers[c], *item.rows);
      carries[c] = peers[c];
    } else {
      std::vector<RigStep> steps, peer_steps;
      uint32_t left = choice == 2 ? options.max_tokens : 20;
      for (uint32_t i = 0; i < kCarries; ++i) {
        const uint32_t count = random() % (left / 2 + 1);
        const uint32_t first = random() % (kTokens - count);
        steps.push_back({.carry = &carries[i], .first = first, .count = count});
        peer_steps.push_back({.carry = &peers[i], .first = first, .count = count});
        left -= count;
      }
      RigFormat format;
      format.in_place = random() % 2 == 0;
      format.misalign = random() % 3;
      item.batch = rig.Make(steps, format);
      item.ticket = rig.Start(item.batch);
      item.outputs = peer.Run(peer_steps, format);
    }
  };
  std::deque<Enqueued> earlier;
  for (int round = 0; round < 12; ++round) {
    std::vector<Ticket> tickets;
    for (const Enqueued& item : earlier) tickets.push_back(item.ticket);
    std::shuffle(tickets.begin(), tickets.end(), random);
    // These are waited for while the next are enqueued.
    std::thread waiter([&rig, tickets] {
      for (const Ticket ticket : tickets) EXPECT_TRUE(rig.device().Wait(ticket).ok());
    });
    std::deque<Enqueued> now;
    for (int i = 0; i < 24 && !HasFatalFailure(); ++i) enqueue(now);
    waiter.join();
    ASSERT_FALSE(HasFatalFailure());
    for (const Enqueued& item : earlier) {
      if (item.rows == nullptr) {
        EXPECT_EQ(rig.Finish(item.ticket, item.batch), item.outputs) << round;
      } else if (!item.expected_rows.empty()) {
        EXPECT_EQ(*item.rows, item.expected_rows) << round;
      }
    }
    earlier = std::move(now);
  }
  ASSERT_TRUE(rig.device().Wait(earlier.back().ticket).ok());
}

// Slots are reused batch after batch with no wait between; every gather finds what lay in its slot at its turn, and
// what lies in staging.
TEST_F(CudaQueueTest, EveryGatherFindsWhatItsSlotHeldAtItsTurn) {
  constexpr uint32_t kHeads = 4, kHeadDim = 10, kSlots = 12, kBatches = 400, kStaging = 1 << 13;
  const oracle::Model model = MakeModel({.embed = kHeads * kHeadDim}, 171);
  DeviceOptions options;
  options.geometry = GeometryOf(model);
  options.arena_slots = kSlots;
  options.staging_rows = kStaging;
  options.carries = 1;
  options.max_tokens = 96;
  auto device = testing::CreateTestDevice(options, {WeightsOf(model)}, DeviceUnderTest());
  ASSERT_TRUE(device.ok()) << device.status();
  std::mt19937 random(172);
  std::vector<uint16_t> in_slot(kSlots, 0);
  uint32_t next_staging = 0;
  uint16_t next_label = 0;
  // Each row of staging is used by one batch alone, and every value of it is its label.
  const auto stage = [&](uint16_t* label) {
    *label = next_label = static_cast<uint16_t>((next_label + 1) % 0x7F00);
    auto* row = reinterpret_cast<Bf16*>((*device)->staging().Row(next_staging));
    std::fill(row, row + kHeadDim, *label);
    return next_staging++;
  };
  struct Batch {
    BatchPlan plan;
    std::vector<uint16_t> labels;
    std::vector<Bf16> out;
    Ticket ticket;
  };
  std::deque<Batch> batches;
  for (uint32_t b = 0; b < kBatches; ++b) {
    Batch& batch = batches.emplace_back();
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (b > 0 && random() % 3 != 0) continue;
      batch.plan.fills.push_back({stage(&in_slot[slot]), Slot(slot)});
    }
    batch.plan.num_tokens = random() % 16 == 0 ? 96 : random() % 4;
    uint32_t bypassed = 0;
    for (uint32_t i = 0; i < batch.plan.num_tokens * kHeads; ++i) {
      uint16_t& label = batch.labels.emplace_back();
      if (bypassed < 3 && random() % 5 == 0) {
        ++bypassed;
        batch.plan.gather.push_back(GatherIndex::OfStaging(stage(&label)));
      } else {
        const uint32_t slot = random() % kSlots;
        label = in_slot[slot];
        batch.plan.gather.push_back(GatherIndex::OfSlot(Slot(slot)));
      }
    }
    batch.out.assign(batch.plan.gather.size() * kHeadDim, 0xFFFF);
    if (batch.plan.num_tokens > 0) batch.plan.embeddings = batch.out.data();
    const auto ticket = (*device)->Run(batch.plan);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    batch.ticket = *ticket;
  }
  ASSERT_LE(next_staging, kStaging);
  std::vector<uint32_t> order(kBatches);
  for (uint32_t b = 0; b < kBatches; ++b) order[b] = b;
  std::shuffle(order.begin(), order.end(), random);
  for (const uint32_t b : order) {
    ASSERT_TRUE((*device)->Wait(batches[b].ticket).ok());
    std::vector<Bf16> expected;
    for (const uint16_t label : batches[b].labels) expected.insert(expected.end(), kHeadDim, label);
    EXPECT_EQ(batches[b].out, expected) << b;
  }
}

}  // namespace
}  // namespace pleiad
