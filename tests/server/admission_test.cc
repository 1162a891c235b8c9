#include "server/admission.h"

#include <gtest/gtest.h>

#include <vector>

namespace pleiad {
namespace {

TEST(Admission, UnaryCallsAreRefusedPastRequestsOrBytes) {
  Admission admission({.requests = 3, .bytes = 100});
  EXPECT_TRUE(admission.TryAdmit(10));
  EXPECT_TRUE(admission.TryAdmit(90));
  EXPECT_FALSE(admission.TryAdmit(1)) << "bytes";
  EXPECT_TRUE(admission.TryAdmit(0));
  EXPECT_FALSE(admission.TryAdmit(0)) << "requests";
  admission.ReleaseRequest();
  admission.ReleaseBytes(90);
  EXPECT_TRUE(admission.TryAdmit(90));
  EXPECT_EQ(admission.used().requests, 3u);
  EXPECT_EQ(admission.used().bytes, 100u);
}

TEST(Admission, AnAnsweredUnaryCallHoldsItsBytesAndNoPlace) {
  Admission admission({.requests = 1, .bytes = 100});
  EXPECT_TRUE(admission.TryAdmit(60));
  EXPECT_FALSE(admission.TryAdmit(10)) << "requests";
  admission.ReleaseRequest();
  EXPECT_FALSE(admission.TryAdmit(50)) << "answers that nobody reads";
  EXPECT_TRUE(admission.TryAdmit(10));
  admission.ReleaseRequest();
  admission.ReleaseBytes(60);
  admission.ReleaseBytes(10);
  EXPECT_EQ(admission.used().bytes, 0u);
}

TEST(Admission, AStreamGetsHalf) {
  Admission admission({.requests = 4, .bytes = 100});
  Admission::Stream stream;
  int room = 0;
  EXPECT_TRUE(admission.AdmitOrWait(&stream, 10, [] {}));
  EXPECT_TRUE(admission.AdmitOrWait(&stream, 10, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&stream, 10, [&room] { ++room; }));
  EXPECT_TRUE(admission.TryAdmit(50)) << "one stream at its half keeps nobody else out";
  EXPECT_EQ(room, 0);
  admission.Release(&stream, 10);
  EXPECT_EQ(room, 1);
  EXPECT_EQ(admission.used().requests, 3u);
  EXPECT_EQ(admission.used().bytes, 70u);
}

TEST(Admission, AStreamWaitsForItsHalfOfTheBytes) {
  Admission admission({.requests = 100, .bytes = 100});
  Admission::Stream stream;
  int room = 0;
  EXPECT_TRUE(admission.AdmitOrWait(&stream, 40, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&stream, 11, [&room] { ++room; }));
  admission.Release(&stream, 40);
  EXPECT_EQ(room, 1);
}

TEST(Admission, WaitersGoInOrderAndUnaryCallsDoNotOvertakeThem) {
  Admission admission({.requests = 100, .bytes = 100});
  Admission::Stream a, b;
  std::vector<char> order;
  EXPECT_TRUE(admission.TryAdmit(60));
  EXPECT_TRUE(admission.TryAdmit(20));
  EXPECT_FALSE(admission.AdmitOrWait(&a, 50, [&order] { order.push_back('a'); }));
  EXPECT_FALSE(admission.AdmitOrWait(&b, 5, [&order] { order.push_back('b'); }));
  EXPECT_FALSE(admission.TryAdmit(5));
  admission.ReleaseRequest();
  admission.ReleaseBytes(20);
  EXPECT_TRUE(order.empty());
  admission.ReleaseRequest();
  admission.ReleaseBytes(60);
  EXPECT_EQ(order, (std::vector<char>{'a', 'b'}));
  EXPECT_TRUE(admission.TryAdmit(5));
}

TEST(Admission, AWaiterAtItsOwnHalfDoesNotHoldUpOthers) {
  Admission admission({.requests = 4, .bytes = 1000});
  Admission::Stream a, b;
  EXPECT_TRUE(admission.AdmitOrWait(&a, 1, [] {}));
  EXPECT_TRUE(admission.AdmitOrWait(&a, 1, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&a, 1, [] {}));
  EXPECT_TRUE(admission.AdmitOrWait(&b, 1, [] {}));
}

TEST(Admission, ACancelledWaitIsNotCalledAndLetsTheNextIn) {
  Admission admission({.requests = 100, .bytes = 100});
  Admission::Stream a, b;
  int room_a = 0, room_b = 0;
  EXPECT_TRUE(admission.TryAdmit(90));
  EXPECT_FALSE(admission.AdmitOrWait(&a, 50, [&room_a] { ++room_a; }));
  EXPECT_FALSE(admission.AdmitOrWait(&b, 5, [&room_b] { ++room_b; }));
  EXPECT_TRUE(admission.CancelWait(&a));
  EXPECT_FALSE(admission.CancelWait(&a));
  EXPECT_EQ(room_b, 1);
  admission.ReleaseRequest();
  admission.ReleaseBytes(90);
  EXPECT_EQ(room_a, 0);
  EXPECT_FALSE(admission.CancelWait(&b)) << "it was admitted";
}

TEST(Admission, AClientsCallsAreRefusedAtItsOwnBound) {
  Admission admission({.requests = 100, .bytes = 1000});
  int full = 0;
  admission.NotifyWhenFull([&full] { ++full; });
  Admission::Client client({.requests = 2, .bytes = 50}), other({.requests = 2, .bytes = 50});
  Admission::Limit met = Admission::Limit::kTotal;
  EXPECT_TRUE(admission.TryAdmit(70, &client, &met)) << "larger than the bound, and alone";
  EXPECT_FALSE(admission.TryAdmit(1, &client, &met));
  EXPECT_EQ(met, Admission::Limit::kClientBytes);
  EXPECT_TRUE(admission.TryAdmit(50, &other, &met)) << "one client at its bound keeps no other out";
  admission.ReleaseRequest(&client);
  EXPECT_FALSE(admission.TryAdmit(1, &client, &met)) << "an answer that nobody takes";
  admission.ReleaseBytes(70, &client);
  EXPECT_TRUE(admission.TryAdmit(1, &client, &met));
  EXPECT_TRUE(admission.TryAdmit(1, &client, &met));
  EXPECT_FALSE(admission.TryAdmit(1, &client, &met));
  EXPECT_EQ(met, Admission::Limit::kClientRequests);
  EXPECT_EQ(admission.used(client).requests, 2u);
  EXPECT_GT(full, 0) << "its answers may lie unread";
}

TEST(Admission, StreamsOfAClientWaitForItsOwnBound) {
  Admission admission({.requests = 100, .bytes = 1000});
  Admission::Client client({.requests = 2, .bytes = 0});
  Admission::Stream a(&client), b(&client), other;
  int room = 0;
  EXPECT_TRUE(admission.AdmitOrWait(&a, 1, [] {}));
  EXPECT_TRUE(admission.TryAdmit(1, &client));
  EXPECT_FALSE(admission.AdmitOrWait(&b, 1, [&room] { ++room; }));
  EXPECT_TRUE(admission.AdmitOrWait(&other, 1, [] {})) << "past one that waits for its client";
  EXPECT_TRUE(admission.OthersAreWaitedFor()) << "for another stream of its client, which may lie unread";
  admission.Release(&a, 1);
  EXPECT_EQ(room, 1);
  EXPECT_FALSE(admission.AdmitOrWait(&a, 1, [&room] { ++room; }));
  admission.ReleaseRequest(&client);
  EXPECT_EQ(room, 2) << "room that a unary call made";
  admission.Release(&a, 1);
  admission.Release(&b, 1);
  admission.ReleaseBytes(1, &client);
  EXPECT_EQ(admission.used(client).requests, 0u);
  EXPECT_EQ(admission.used(client).bytes, 0u);
}

TEST(Admission, ARequestLargerThanTheBoundIsAdmittedAlone) {
  Admission admission({.requests = 1, .bytes = 10});
  Admission::Stream stream;
  int room = 0;
  EXPECT_TRUE(admission.AdmitOrWait(&stream, 1000, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&stream, 1000, [&room] { ++room; }));
  admission.Release(&stream, 1000);
  EXPECT_EQ(room, 1);
  admission.Release(&stream, 1000);
  EXPECT_EQ(admission.used().bytes, 0u);
  EXPECT_TRUE(admission.TryAdmit(1000));
}

TEST(Admission, StreamsThatHaveNotReadLeaveRoomForThoseThatHave) {
  Admission admission({.requests = 16, .bytes = 100});
  Admission::Stream reader;
  std::vector<Admission::Stream> silent(8);
  EXPECT_TRUE(admission.AdmitOrWait(&reader, 10, [] {}));
  admission.Release(&reader, 10, Admission::kReadsAfterBytes - 1);
  int full = 0, silent_room = 0;
  admission.NotifyWhenFull([&full] { ++full; });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(admission.AdmitOrWait(&silent[static_cast<size_t>(i)], 25, [] {}));
  EXPECT_EQ(full, 0);
  EXPECT_FALSE(admission.AdmitOrWait(&silent[3], 1, [&silent_room] { ++silent_room; })) << "a quarter is not theirs";
  EXPECT_EQ(full, 1);
  EXPECT_TRUE(admission.OthersAreWaitedFor());

  int reader_room = 0;
  EXPECT_FALSE(admission.AdmitOrWait(&reader, 10, [&reader_room] { ++reader_room; })) << "a byte short of a reader";
  admission.Release(&silent[0], 25);
  EXPECT_EQ(silent_room + reader_room, 2);
  admission.Release(&reader, 10, 1);
  EXPECT_TRUE(admission.AdmitOrWait(&silent[4], 24, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&silent[5], 1, [] {}));
  EXPECT_TRUE(admission.AdmitOrWait(&reader, 25, [] {})) << "it reads, and is kept up by none";
  EXPECT_EQ(admission.used().bytes, 100u);
}

TEST(Admission, AStreamThatShowsThatItReadsNoLongerCountsAmongThoseThatDoNot) {
  Admission admission({.requests = 16, .bytes = 100});
  Admission::Stream reader, other;
  EXPECT_TRUE(admission.AdmitOrWait(&reader, 20, [] {}));
  EXPECT_TRUE(admission.AdmitOrWait(&reader, 20, [] {}));
  admission.Release(&reader, 20, Admission::kReadsAfterBytes);
  int room = 0;
  EXPECT_TRUE(admission.AdmitOrWait(&other, 50, [&room] { ++room; }));
  admission.Release(&reader, 20);
  admission.Release(&other, 50);
  EXPECT_TRUE(admission.AdmitOrWait(&other, 50, [] {})) << "nothing is counted twice or left";
  EXPECT_EQ(admission.used().bytes, 50u);
}

TEST(Admission, AStreamAtItsOwnHalfWaitsForNobodyElse) {
  Admission admission({.requests = 2, .bytes = 100});
  Admission::Stream stream;
  int full = 0;
  admission.NotifyWhenFull([&full] { ++full; });
  EXPECT_TRUE(admission.AdmitOrWait(&stream, 1, [] {}));
  EXPECT_FALSE(admission.AdmitOrWait(&stream, 1, [] {}));
  EXPECT_EQ(full, 0);
  EXPECT_FALSE(admission.OthersAreWaitedFor());
}

TEST(Admission, ReleasingInsideACallbackDoesNotNest) {
  Admission admission({.requests = 1, .bytes = 10});
  std::vector<Admission::Stream> streams(10000);
  int depth = 0, deepest = 0, calls = 0;
  EXPECT_TRUE(admission.TryAdmit(1));
  for (Admission::Stream& stream : streams) {
    EXPECT_FALSE(admission.AdmitOrWait(&stream, 1, [&] {
      ++calls;
      deepest = std::max(deepest, ++depth);
      admission.Release(&stream, 1);
      --depth;
    }));
  }
  admission.ReleaseRequest();
  admission.ReleaseBytes(1);
  EXPECT_EQ(calls, 10000);
  EXPECT_EQ(deepest, 1);
}

}  // namespace
}  // namespace pleiad
