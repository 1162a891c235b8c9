// Starts itself once more as a child that only waits, prints the child's process id, and waits.
#include <unistd.h>

#include <cstdio>

#include "tests/support/process/child_process.h"

int main(int argc, char** argv) {
  if (argc > 1) {
    std::puts("waiting");
    std::fflush(stdout);
    for (;;) ::pause();
  }
  pleiad::testing::ChildProcess child({argv[0], "wait"});
  if (child.ReadOutputLine() != "waiting") return 1;
  std::printf("%d\n", child.pid());
  std::fflush(stdout);
  for (;;) ::pause();
}
