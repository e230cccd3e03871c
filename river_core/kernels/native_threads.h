// Threads that compute something together: OpenMP's, or our own where the compiler has none.
//
// `together(threads, work)` calls work() on that many threads, the calling one among them, and
// returns when all are done; inside it `this_thread()` counts from 0, and `share` divides rows.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(_OPENMP)

extern "C" int omp_get_thread_num(), omp_get_num_threads();  // native_library.py: no omp.h on a Mac
static int this_thread() { return omp_get_thread_num(); }
static int all_threads() { return omp_get_num_threads(); }
template <class Work> static void together(int threads, Work work) {
#pragma omp parallel num_threads(threads)
    work();
}

#else

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

static thread_local int thread_number = 0, thread_count = 1;
static int this_thread() { return thread_number; }
static int all_threads() { return thread_count; }

// Threads are made when they are first wanted and never ended. For a while after some work they
// look for more (a token is a hundred calls, one soon after the other), then they sleep.
struct Team {
    using Call = void (*)(void*);
    std::mutex one_at_a_time, lock;
    std::condition_variable more;
    std::atomic<uint64_t> turn{0};
    std::atomic<int> busy{0};
    int made = 0, wanted = 0;
    Call call = nullptr;
    void* with = nullptr;

    uint64_t wait_for_turn(uint64_t last, int& threads) {
        auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(500);
        for (int spins = 1; turn.load() == last; spins++) {
            if (spins % 256) continue;
            if (std::chrono::steady_clock::now() > until) break;
            std::this_thread::yield();
        }
        std::unique_lock<std::mutex> held(lock);
        more.wait(held, [&] { return turn.load() != last; });
        threads = wanted;  // of this very turn, which a thread that takes part in it holds up
        return turn.load();
    }
    void serve(int number, uint64_t last) {
        for (;;) {
            int threads;
            last = wait_for_turn(last, threads);
            if (number >= threads) continue;
            thread_number = number, thread_count = threads;
            call(with);
            busy.fetch_sub(1);
        }
    }
    void run(int threads, Call work, void* argument) {
        std::lock_guard<std::mutex> alone(one_at_a_time);
        for (; made < threads - 1; made++)
            std::thread(&Team::serve, this, made + 1, turn.load()).detach();
        {
            std::lock_guard<std::mutex> held(lock);
            call = work, with = argument, wanted = threads;
            busy.store(threads - 1);
            turn.fetch_add(1);
        }
        more.notify_all();
        thread_number = 0, thread_count = threads;
        work(argument);
        for (int spins = 1; busy.load(); spins++)
            if (spins > 1000) std::this_thread::yield();
        thread_count = 1;
    }
};
template <class Work> static void together(int threads, Work work) {
    static Team& team = *new Team;  // threads use it until the process ends
    team.run(threads, [](void* w) { (*(Work*)w)(); }, &work);
}

#endif
