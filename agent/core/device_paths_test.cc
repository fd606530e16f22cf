#include "agent/core/device_paths.h"

#include "agent/core/wire_convert.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);

Collective Opened() {
  Collective collective({{0, 22907, "GPU-0"}, {1, 22907, "GPU-1"}}, {});
  collective.Begin(kNow);
  auto id = MakeMessage<wire::CollectiveId>(wire::Kind::kCollectiveId);
  id.epoch = 1;
  collective.OnId(0, id);
  for (size_t m = 0; m < 2; ++m) {
    auto opened = MakeMessage<wire::Opened>(wire::Kind::kOpened);
    opened.epoch = 1;
    collective.OnOpened(m, opened);
  }
  return collective;
}

const std::vector<DevicePath> kNccl = {{0, 3, "asked for"},
                                       {1, 3, "asked for"}};

TEST(DevicePathsTest, OfModelsOnCpusThereIsNone) {
  const Collective none({{0, 0, ""}, {1, 0, ""}}, {});
  EXPECT_EQ(PathOfNode({{0, 0, ""}, {1, 0, ""}}, none), std::nullopt);
}

TEST(DevicePathsTest, TrainersThatAreAlikeAreSaidOnce) {
  const Collective none({{0, 0, ""}, {1, 0, ""}}, {});
  EXPECT_EQ(PathOfNode({{0, 1, "no driver"}, {1, 1, "no driver"}}, none),
            (protocol::DevicePath{"torch", "no driver"}));
}

TEST(DevicePathsTest, TrainersThatDifferAreSaidByRank) {
  const Collective none({{4, 0, ""}, {5, 0, ""}}, {});
  EXPECT_EQ(PathOfNode({{4, 0, ""}, {5, 2, "asked for"}}, none),
            (protocol::DevicePath{"cpu, device",
                                  "rank 4: its model is on a CPU; rank 5: "
                                  "asked for"}));
}

TEST(DevicePathsTest, NcclIsThePathWhileItsCommunicatorIsOpen) {
  const Collective closed({{0, 22907, "GPU-0"}, {1, 22907, "GPU-1"}}, {});
  EXPECT_EQ(PathOfNode(kNccl, closed),
            (protocol::DevicePath{
                "device", "not by NCCL: its communicator is not open yet"}));
  EXPECT_EQ(PathOfNode(kNccl, Opened()),
            (protocol::DevicePath{"nccl", "asked for"}));
}

TEST(DevicePathsTest, AFallbackIsCountedAndItsReasonCanBePrinted) {
  Collective collective = Opened();
  auto failed =
      MakeMessage<wire::CollectiveFailed>(wire::Kind::kCollectiveFailed);
  failed.epoch = 1;
  SetText("a\x1b[2J" + std::string(300, 'x'), failed.text);
  collective.OnFailed(1, failed);
  const auto path = PathOfNode(kNccl, collective);
  ASSERT_NE(path, std::nullopt);
  EXPECT_EQ(path->name, "device");
  EXPECT_EQ(path->reason.substr(0, 30), "not by NCCL: rank 1: a?[2Jxxxx");
  EXPECT_EQ(path->reason.size(), 200u);
  EXPECT_EQ(path->nccl_fallbacks, 1u);
}

}  // namespace
}  // namespace pactrain::agent
