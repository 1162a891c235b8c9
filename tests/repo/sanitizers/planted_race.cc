// Two threads write one number without a lock. Both finish before the report is looked for, so no timing is needed.
#include <thread>

int main() {
  int counter = 0;
  std::thread first([&] { ++counter; });
  std::thread second([&] { ++counter; });
  first.join();
  second.join();
  return counter > 0 ? 0 : 1;
}
