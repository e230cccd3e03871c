// Waits for a word that a GPU writes into host memory, then launches what the word asks for.
// Called without Python's lock: neither step waits for another thread of the program.

#include <chrono>
#include <cstdint>

using Launch = int (*)(void *graph, void *stream);

// `word` holds 31 bits of step, a flag, 32 bits of similarity. Returns 0, -1 where the step did not
// come within `seconds`, or what `launch` (cuGraphLaunch) returned for `stay` or `leave`.
extern "C" int river_poll(const uint64_t *word, int64_t step, double seconds, uint64_t *found,
                          Launch launch, void *stay, void *leave, void *stream) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    for (int look = 0; look < 1000; ++look) {
      const uint64_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
      if (static_cast<int64_t>(now >> 33) == step) {
        *found = now;
        void *graph = now >> 32 & 1 ? leave : stay;
        return graph && launch ? launch(graph, stream) : 0;
      }
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
    if (Clock::now() > end) return -1;
  }
}
