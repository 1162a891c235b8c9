// GoogleMock's Connection.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "client/connection.h"

namespace pleiad::client::testing {

class MockConnection : public Connection {
 public:
  MOCK_METHOD(absl::StatusOr<ModelInfo>, GetModel, (), (override));
  MOCK_METHOD(absl::StatusOr<OpenResult>, Open, (const OpenOptions&), (override));
  MOCK_METHOD(absl::StatusOr<SequenceStatus>, GetSequence, (SequenceId, uint64_t), (override));
  MOCK_METHOD(absl::StatusOr<SequenceSnapshot>, Snapshot, (SequenceId, uint64_t, std::optional<uint32_t>), (override));
  MOCK_METHOD(absl::Status, Restore, (SequenceId, uint64_t, const SequenceSnapshot&), (override));
  MOCK_METHOD(absl::StatusOr<bool>, Release, (SequenceId, uint64_t), (override));
  MOCK_METHOD(void, ReleaseLater, (SequenceId, uint64_t), (override));
  MOCK_METHOD(absl::StatusOr<LookupResult>, Lookup, (const LookupQuery&), (override));
  MOCK_METHOD(absl::StatusOr<StepResult>, Forward, (const WireStep&), (override));
  MOCK_METHOD(absl::StatusOr<HealthState>, Health, (const std::string&), (override));
  MOCK_METHOD(std::unique_ptr<StepConnection>, OpenStream, (), (override));
  MOCK_METHOD(absl::StatusOr<std::unique_ptr<RegionLease>>, AttachFile, (const std::string&, uint64_t), (override));
  MOCK_METHOD(absl::StatusOr<std::unique_ptr<RegionLease>>, AttachDeviceMemory, (const DeviceMemoryHandles&),
              (override));
};

}  // namespace pleiad::client::testing
